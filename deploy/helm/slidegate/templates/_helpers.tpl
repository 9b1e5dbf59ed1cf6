{{/* The name of all objects. 5 bytes are left for "-grpc". */}}
{{- define "slidegate.name" -}}
{{- $default := contains "slidegate" .Release.Name | ternary .Release.Name (printf "%s-slidegate" .Release.Name) -}}
{{- .Values.fullnameOverride | default $default | trunc 58 | trimSuffix "-" -}}
{{- end -}}

{{/* What Services and others select pods by; never changes. */}}
{{- define "slidegate.selector" -}}
app.kubernetes.io/name: slidegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The labels of every object. */}}
{{- define "slidegate.labels" -}}
{{ include "slidegate.selector" . }}
app.kubernetes.io/part-of: slidegate
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The name of the Secret of the service; empty without one. */}}
{{- define "slidegate.secret" -}}
{{- if .Values.secret.name -}}
{{ .Values.secret.name }}
{{- else if .Values.secret.values -}}
{{ include "slidegate.name" . }}
{{- end -}}
{{- end -}}

{{/* The keys of that Secret, as JSON. */}}
{{- define "slidegate.secretKeys" -}}
{{- if .Values.secret.name -}}
{{ toJson .Values.secret.keys }}
{{- else -}}
{{ keys .Values.secret.values | toJson }}
{{- end -}}
{{- end -}}

{{/* Whether pods share a Redis: not empty if they do. */}}
{{- define "slidegate.shared" -}}
{{- if or (include "slidegate.secretKeys" . | fromJsonArray | has "redis-url") (dig "store" "redis" "" .Values.config) -}}
true
{{- end -}}
{{- end -}}

{{/* Rejects values that only together are wrong. */}}
{{- define "slidegate.check" -}}
{{- $secret := .Values.secret -}}
{{- if and $secret.name $secret.values -}}
  {{- fail "secret: has both `name` and `values`, of which only one is used; remove one of them" -}}
{{- end -}}
{{- $without := "but there is no Redis, so each pod would admit the whole limit; give a Secret with the key `redis-url` in `secret.name`, or `secret.values.redis-url`," -}}
{{- if not (include "slidegate.shared" .) -}}
  {{- if .Values.autoscaling.enabled -}}
    {{- fail (printf "autoscaling.enabled: is true, %s or disable it" $without) -}}
  {{- else if gt (int .Values.replicas) 1 -}}
    {{- fail (printf "replicas: is %d, %s or set it to 1" (int .Values.replicas) $without) -}}
  {{- end -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
  {{- fail (printf "autoscaling.minReplicas: is %d, must be at most `maxReplicas`, which is %d" (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- $hasTokens := or (include "slidegate.secretKeys" . | fromJsonArray | has "admin-tokens") (dig "admin" "tokens" "" .Values.config) -}}
{{- if and .Values.monitoring.serviceMonitor.enabled (not $hasTokens) -}}
  {{- fail "monitoring.serviceMonitor.enabled: is true, but /metrics needs a token; run `slidegate token new --name prometheus --scope read`, and give its line in the key `admin-tokens` of the Secret" -}}
{{- end -}}
{{- range $section, $port := dict "grpc" ":8081" "resp" ":6380" -}}
  {{- with index $.Values.config $section -}}
    {{- if not (hasSuffix $port (toString .listen)) -}}
      {{- fail (printf "config.%s.listen: is `%s`, must have the port of the Service, `0.0.0.0%s`" $section (toString .listen) $port) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
