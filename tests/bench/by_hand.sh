#!/bin/bash
# What site.yml does, by hand: the same pulls, files, secrets and starts, and the same question at the end.
# Usage: by_hand.sh FILES.tar REFERENCES AUTHFILE SECRET QUESTION.json -- ssh words...
set -euo pipefail
files=$1 references=$2 authfile=$3 secret=$4 question=$5
shift 6
node=("$@")

"${node[@]}" 'tar -C / -xf -' < "$files"
while read -r reference; do
  "${node[@]}" "podman pull --quiet --authfile $authfile $reference" &
done < "$references"
wait
printf '%s' "$secret" | "${node[@]}" 'podman secret create grafana-admin-password -'
"${node[@]}" 'systemctl daemon-reload && systemctl enable --quiet --now vllm-node.target'
"${node[@]}" 'for unit in gpu-cdi-ready alertmanager dcgm-exporter grafana node-exporter prometheus vllm-tiny; do
  until systemctl is-active --quiet $unit; do sleep 0.5; done
done
until curl -sf -o /dev/null 127.0.0.1:9091/-/ready; do sleep 0.5; done
until curl -sf -o /dev/null 127.0.0.1:3000/api/health; do sleep 0.5; done
until curl -sf -o /dev/null 127.0.0.1:9093/-/ready; do sleep 0.5; done
until curl -sf 127.0.0.1:9100/metrics | grep -q node_memory_MemAvailable_bytes; do sleep 0.5; done
until curl -sf 127.0.0.1:9400/metrics | grep -q DCGM_FI_DEV_GPU_UTIL; do sleep 0.5; done
until curl -sf 127.0.0.1:8000/v1/models | grep -q tiny; do sleep 0.5; done'
"${node[@]}" "curl -sf -H 'Content-Type: application/json' -d @- 127.0.0.1:8000/v1/chat/completions" < "$question"
