#!/bin/sh
# nginx with limit_req, which counts by the field `x-user`.
set -eu
dir=$(mktemp -d -p "$FOLDER")
chmod 755 "$dir"
# MAX_KEYS: a state takes 128 bytes, and a zone at least eight pages.
zone=$((${MAX_KEYS:-80000} * 128))
[ "$zone" -ge 32768 ] || zone=32768
# Rates are in whole requests per second or per minute.
rate() { [ $(($1 * 1000 % $2)) -eq 0 ] && echo "$(($1 * 1000 / $2))r/s" || echo "$(($1 * 60000 / $2))r/m"; }
zones="limit_req_zone \$http_x_user zone=first:$zone rate=$(rate "$LIMIT" "$WINDOW_MS");"
limits="limit_req zone=first burst=$((LIMIT - 1)) nodelay;"
if [ -n "${LIMIT2:-}" ]; then
    zones="$zones limit_req_zone \$http_x_user zone=second:$zone rate=$(rate "$LIMIT2" "$WINDOW2_MS");"
    limits="$limits limit_req zone=second burst=$((LIMIT2 - 1)) nodelay;"
fi
cat > "$dir/nginx.conf" <<END
daemon off;
user root;
worker_processes auto;
pid $dir/nginx.pid;
error_log stderr error;
events {}
http {
    access_log off;
    keepalive_requests 1000000;
    limit_req_status 429;
    limit_req_log_level info;
    $zones
    server {
        listen 127.0.0.1:$PORT;
        location / {
            $limits
            proxy_pass http://unix:$dir/backend.sock;
        }
    }
    server {
        listen unix:$dir/backend.sock;
        return 200;
    }
}
END
exec nginx -p "$dir" -e stderr -c "$dir/nginx.conf"
