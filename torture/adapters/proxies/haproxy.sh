#!/bin/sh
# HAProxy with a stick table, which counts by the field `x-user`.
set -eu
dir=$(mktemp -d -p "$FOLDER")
table() { echo "type string len 64 size ${MAX_KEYS:-1m} expire ${1}ms store http_req_rate(${1}ms)"; }
second='' track='' deny=''
if [ -n "${LIMIT2:-}" ]; then
    second="backend second
    stick-table $(table "$WINDOW2_MS")"
    track='http-request track-sc1 hdr(x-user) table second'
    deny="http-request deny deny_status 429 if { sc_http_req_rate(1) gt $LIMIT2 }"
fi
cat > "$dir/haproxy.cfg" <<END
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s

frontend torture
    bind 127.0.0.1:$PORT
    http-request track-sc0 hdr(x-user) table first
    $track
    http-request deny deny_status 429 if { sc_http_req_rate(0) gt $LIMIT }
    $deny
    http-request return status 200

backend first
    stick-table $(table "$WINDOW_MS")

$second
END
exec haproxy -q -db -f "$dir/haproxy.cfg"
