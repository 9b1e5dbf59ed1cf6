#!/bin/sh
# The service, from a release build: `slidegate.sh http`, `resp` or `rls` is the protocol that has $PORT. `snapshot` is HTTP
# with usage that is kept in a file.
set -eu
dir=$(mktemp -d -p "$FOLDER")
# HTTP is always served.
http='listen: 127.0.0.1:0' others=''
case $1 in
    http | snapshot) http="listen: 127.0.0.1:$PORT" ;;
    resp) others="resp: { listen: 127.0.0.1:$PORT }" ;;
    rls) others="grpc: { listen: 127.0.0.1:$PORT }" ;;
esac
second='' store=''
[ -z "${LIMIT2:-}" ] || second="- { name: second, scope: [user], limit: $LIMIT2, window: ${WINDOW2_MS}ms }"
[ -z "${MAX_KEYS:-}" ] || store="store: { memory: { max_keys: $MAX_KEYS } }"
[ "$1" != snapshot ] || store="store: { memory: { snapshot: { path: '$FOLDER/usage', interval: 100ms } } }"
[ -z "${REDIS:-}" ] || store="store: { redis: '$REDIS' }"
cat > "$dir/slidegate.yaml" <<END
policies:
  - { name: first, scope: [user], limit: $LIMIT, window: ${WINDOW_MS}ms }
  $second
server: { $http }
$others
$store
END
exec "${SLIDEGATE:-$(dirname "$0")/../../../target/release/slidegate}" serve --config "$dir/slidegate.yaml" --log-level error
