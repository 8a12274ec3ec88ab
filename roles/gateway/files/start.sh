# Starts nginx in the container, as its user. With the word `check` it only judges the configuration.
set -eu
module=/usr/lib/nginx/modules/ngx_http_js_module.so
if [ ! -e "$module" ]; then
  echo "gateway: this image has no njs module ($module); lock the full nginx image, not its slim variant" >&2
  exit 1
fi
if [ "${1:-}" = check ]; then
  # Without TLS, as a certificate that the node makes is not there yet; and without the node's addresses.
  sed -e '/ssl_certificate/d' -e 's|listen .* ssl .*;|listen unix:/tmp/check;|' /etc/gateway/nginx.conf >/tmp/nginx.conf
  exec nginx -t -q -e stderr -c /tmp/nginx.conf
fi
# The access log: cat writes what comes through the pipe to standard output, and ends with nginx.
rm -f /tmp/access
mkfifo -m 600 /tmp/access
cat /tmp/access &
exec nginx -e stderr -c /etc/gateway/nginx.conf
