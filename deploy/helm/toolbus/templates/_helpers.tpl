{{- /* A long name is cut, and its hash keeps it apart from others that begin alike. */}}
{{- define "toolbus.name" -}}
{{- $name := ternary .Release.Name (printf "%s-toolbus" .Release.Name) (contains "toolbus" .Release.Name) }}
{{- if gt (len $name) 40 }}{{ printf "%s-%s" ($name | trunc 33 | trimSuffix "-") ($name | sha256sum | trunc 6) }}{{ else }}{{ $name }}{{ end }}
{{- end }}

{{- define "toolbus.selector" -}}
app.kubernetes.io/name: toolbus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "toolbus.labels" -}}
{{ include "toolbus.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "toolbus.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "toolbus.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "toolbus.name" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- /* The server's URL without a user. */}}
{{- define "toolbus.serverUrl" -}}
{{- if and .Values.valkey.enabled .Values.redis.url }}{{ fail "redis.url names a server, and valkey.enabled brings one: give one of them" }}{{ end }}
{{- if .Values.valkey.enabled -}}
{{ ternary "rediss" "redis" .Values.redis.tls.enabled }}://{{ include "toolbus.name" . }}-valkey:6379
{{- else -}}
{{- $url := required "redis.url is missing: name a server, or set valkey.enabled" .Values.redis.url }}
{{- if and .Values.redis.tls.enabled (not (hasPrefix "rediss" $url)) }}{{ fail "redis.tls.enabled needs a redis.url that begins with rediss" }}{{ end }}
{{- $url }}
{{- end }}
{{- end }}

{{- define "toolbus.url" -}}
{{- $url := include "toolbus.serverUrl" .root }}
{{- if .auth.username }}{{ $url = $url | replace "://" (printf "://%s@" .auth.username) }}{{ end }}
{{- $url }}
{{- end }}

{{- /* Host and port of the server, or several of them, for the scaler. */}}
{{- define "toolbus.address" -}}
{{- regexReplaceAll "^[a-z+]+://([^@/?]*@)?([^/?]+).*$" (include "toolbus.serverUrl" .) "${2}" }}
{{- end }}

{{- define "toolbus.environment" -}}
- name: TOOLBUS_URL
  value: {{ include "toolbus.url" . | quote }}
- name: TOOLBUS_NAMESPACE
  value: {{ .root.Values.namespace | quote }}
- name: TOOLBUS_GRACE
  value: {{ .grace | quote }}
- name: TOOLBUS_LOG_FORMAT
  value: json
- name: TOOLBUS_CONNECT_TIMEOUT
  value: "120"
{{- if .auth.secret }}
- name: TOOLBUS_PASSWORD_FILE
  value: /run/secrets/toolbus/password/{{ .auth.key }}
{{- else if .auth.username }}{{ fail (printf "redis.auth: the user %q has no secret with a password" .auth.username) }}
{{- end }}
{{- with .root.Values.redis.tls }}
{{- if .enabled }}
{{- if .caSecret }}
- name: TOOLBUS_TLS_CA
  value: /run/secrets/toolbus/ca/{{ .caKey }}
{{- end }}
{{- if .clientSecret }}
- name: TOOLBUS_TLS_CERT
  value: /run/secrets/toolbus/client/tls.crt
- name: TOOLBUS_TLS_KEY
  value: /run/secrets/toolbus/client/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- range $name, $value := .settings }}
- name: TOOLBUS_{{ upper $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "toolbus.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if .auth.secret }}
- {name: password, mountPath: /run/secrets/toolbus/password, readOnly: true}
{{- end }}
{{- with .root.Values.redis.tls }}
{{- if and .enabled .caSecret }}
- {name: ca, mountPath: /run/secrets/toolbus/ca, readOnly: true}
{{- end }}
{{- if and .enabled .clientSecret }}
- {name: client, mountPath: /run/secrets/toolbus/client, readOnly: true}
{{- end }}
{{- end }}
{{- with .volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "toolbus.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- if .auth.secret }}
- name: password
  secret: {secretName: {{ .auth.secret }}, defaultMode: 0440}
{{- end }}
{{- with .root.Values.redis.tls }}
{{- if and .enabled .caSecret }}
- name: ca
  secret: {secretName: {{ .caSecret }}, defaultMode: 0440}
{{- end }}
{{- if and .enabled .clientSecret }}
- name: client
  secret: {secretName: {{ .clientSecret }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- with .volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "toolbus.probes" -}}
startupProbe:
  httpGet: {path: /startup, port: health}
  periodSeconds: 1
  timeoutSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /live, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /ready, port: health}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: 2
{{- end }}

{{- define "toolbus.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "toolbus.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What a pod of workers and one of a gateway have in common. */}}
{{- define "toolbus.pod" -}}
serviceAccountName: {{ include "toolbus.serviceAccount" .root }}
automountServiceAccountToken: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{ toYaml . | indent 2 }}
{{- end }}
# The grace, then what is signed off; a supervisor kills its processes five seconds after the grace.
terminationGracePeriodSeconds: {{ add .grace 15 }}
securityContext:
{{ include "toolbus.podSecurity" . | indent 2 }}
{{- with .nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{ toYaml . | indent 2 }}
{{- end }}
{{- if .topologySpread.enabled }}
topologySpreadConstraints:
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: {{ $.topologySpread.maxSkew }}
    topologyKey: {{ $key }}
    whenUnsatisfiable: {{ $.topologySpread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
{{ include "toolbus.selector" $ | indent 8 }}
{{- end }}
{{- end }}
{{- end }}
