{{- define "labels" -}}
app: {{ .Release.Name }}
app.kubernetes.io/name: sightline
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* The last number of host:port. */ -}}
{{- define "port" -}}
{{- last (splitList ":" (required (printf "config.%s is needed, as host:port" .key) .addr)) -}}
{{- end }}

{{- /* "yes" if the chart makes the secret of the block hashes: the configuration names none, and NATS has none. */ -}}
{{- define "ownKey" -}}
{{- $c := .Values.config }}
{{- if not (or .Values.pool.name $c.nats (dig "index" "key_file" "" $c)) }}yes{{ end }}
{{- end }}

{{- define "account" -}}
{{ .Values.serviceAccount.name | default .Release.Name }}
{{- end }}

{{- define "image" -}}
{{- $tag := printf ":%s" (.Values.image.tag | default .Chart.AppVersion) }}
{{- printf "%s%s" .Values.image.repository (empty .Values.image.digest | ternary $tag (printf "@%s" .Values.image.digest)) | quote }}
{{- end }}
