#!/bin/sh
# Envoy with the local rate limit filter: a token bucket for each value of the field `x-user`.
set -eu
dir=$(mktemp -d -p "$FOLDER")
bucket() { echo "{ max_tokens: $1, tokens_per_fill: $1, fill_interval: $(($2 / 1000)).$(printf %03d $(($2 % 1000)))s }"; }
second='' action=''
if [ -n "${LIMIT2:-}" ]; then
    second="- { entries: [{ key: second }], token_bucket: $(bucket "$LIMIT2" "$WINDOW2_MS") }"
    action='- actions: [{ request_headers: { header_name: x-user, descriptor_key: second } }]'
fi
cat > "$dir/envoy.yaml" <<END
static_resources:
  listeners:
    - name: torture
      address: { socket_address: { address: 127.0.0.1, port_value: $PORT } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: torture
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{ match: { prefix: / }, route: { cluster: backend } }]
                      rate_limits:
                        - actions: [{ request_headers: { header_name: x-user, descriptor_key: first } }]
                        $action
                http_filters:
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: torture
                      filter_enabled: { default_value: { numerator: 100 } }
                      filter_enforced: { default_value: { numerator: 100 } }
                      # Of requests that no descriptor matches.
                      token_bucket: { max_tokens: 1, fill_interval: 1s }
                      always_consume_default_token_bucket: false
                      max_dynamic_descriptors: ${MAX_KEYS:-1000000}
                      descriptors:
                        - { entries: [{ key: first }], token_bucket: $(bucket "$LIMIT" "$WINDOW_MS") }
                        $second
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
    - name: backend
      address: { pipe: { path: $dir/backend.sock } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: backend
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{ match: { prefix: / }, direct_response: { status: 200 } }]
                http_filters:
                  - name: envoy.filters.http.router
                    typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
    - name: backend
      load_assignment:
        cluster_name: backend
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: $dir/backend.sock } } } }] }]
END
exec "${ENVOY:-envoy}" -c "$dir/envoy.yaml" --disable-hot-restart --log-level error
