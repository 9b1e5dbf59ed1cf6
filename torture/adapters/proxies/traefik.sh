#!/bin/sh
# Traefik with the rateLimit middleware, which counts by the field `x-user`; in Redis if there is one.
set -eu
dir=$(mktemp -d -p "$FOLDER")
limit() {
    echo "{ average: $1, period: ${2}ms, burst: $1, sourceCriterion: { requestHeaderName: x-user }${redis} }"
}
redis='' names=first second=''
[ -z "${REDIS:-}" ] || redis=", redis: { endpoints: ['${REDIS#redis://}'] }"
if [ -n "${LIMIT2:-}" ]; then
    names='first, second'
    second="second: { rateLimit: $(limit "$LIMIT2" "$WINDOW2_MS") }"
fi
cat > "$dir/dynamic.yml" <<END
http:
  routers:
    torture: { rule: PathPrefix(\`/\`), middlewares: [$names], service: ping@internal }
  middlewares:
    first: { rateLimit: $(limit "$LIMIT" "$WINDOW_MS") }
    $second
END
exec "${TRAEFIK:-traefik}" --entryPoints.web.address="127.0.0.1:$PORT" \
    --entryPoints.traefik.address=127.0.0.1:0 \
    --providers.file.filename="$dir/dynamic.yml" --providers.file.watch=false \
    --ping.manualRouting=true --log.level=ERROR \
    --global.checkNewVersion=false --global.sendAnonymousUsage=false
