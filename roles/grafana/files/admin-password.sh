# Run in the container after each start. Grafana takes the configured password at its very first start only;
# this makes a rotated one true as well.
set -eu
url="http://127.0.0.1:${GF_SERVER_HTTP_PORT}"
password=$(cat "$GF_SECURITY_ADMIN_PASSWORD__FILE")
for _ in $(seq 60); do
  curl -fs -o /dev/null "$url/api/health" && break
  sleep 1
done
# The account is given on standard input: the command line is there for everybody to read.
escaped=$(printf '%s' "$password" | sed 's/[\\"]/\\&/g')
code=$(printf 'user = "admin:%s"\n' "$escaped" | curl -s -o /dev/null -w '%{http_code}' -K - "$url/api/org")
if [ "$code" = 401 ]; then
  printf '%s' "$password" | grafana cli admin reset-admin-password --password-from-stdin
fi
