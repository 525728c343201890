{{/* The chart's name, within the limits of a label. */}}
{{- define "dormouse.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* The prefix of all names: the release's, with the chart's unless it is in there already. */}}
{{- define "dormouse.fullname" -}}
{{- $name := include "dormouse.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The prefix of names that the whole cluster shares: two releases must not meet there. */}}
{{- define "dormouse.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "dormouse.fullname" .) -}}
{{- end -}}

{{/* Labels that select a component's pods; they never change. Takes (list context component). */}}
{{- define "dormouse.selectorLabels" -}}
{{- $context := index . 0 -}}
app.kubernetes.io/name: {{ include "dormouse.name" $context }}
app.kubernetes.io/instance: {{ $context.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of every object. Takes (list context component). */}}
{{- define "dormouse.labels" -}}
{{- $context := index . 0 -}}
{{ include "dormouse.selectorLabels" . }}
app.kubernetes.io/part-of: dormouse
app.kubernetes.io/version: {{ $context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $context.Chart.Name $context.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A part's image. Takes (list context part). */}}
{{- define "dormouse.image" -}}
{{- $context := index . 0 -}}
{{- printf "%s/%s:%s" (trimSuffix "/" $context.Values.image.registry) (index . 1) (default $context.Chart.AppVersion $context.Values.image.tag) -}}
{{- end -}}

{{/* What the restricted Pod Security standard asks of a pod. */}}
{{- define "dormouse.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* What it asks of a container; the read-only root file system is our own addition. */}}
{{- define "dormouse.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* A pod's annotations: scraping, and a digest that starts the pods anew when the tokens change. Takes (list context own). */}}
{{- define "dormouse.podAnnotations" -}}
{{- $context := index . 0 -}}
checksum/role-tokens: {{ include "dormouse.roleTokens" $context | sha256sum }}
{{- if $context.Values.metrics.scrapeAnnotations }}
prometheus.io/scrape: "true"
prometheus.io/port: "8080"
prometheus.io/path: /metrics
{{- end }}
{{- with index . 1 }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/*
The role tokens, as the Secret's data. They are drawn once: an upgrade finds those of the stored Secret. Within one
rendering they are remembered among the values, because every template that asks must get the same ones.
*/}}
{{- define "dormouse.roleTokens" -}}
{{- if not (hasKey .Values "drawnRoleTokens") -}}
{{- $stored := (lookup "v1" "Secret" .Release.Namespace (printf "%s-role-tokens" (include "dormouse.fullname" .))).data | default dict -}}
{{- $data := dict -}}
{{- range $role := list "operator" "gateway" -}}
{{- $key := printf "%s-token" $role -}}
{{- $token := get $stored $key | b64dec | default (randAlphaNum 48) -}}
{{- $_ := set $data $key ($token | b64enc) -}}
{{- $_ := set $data (printf "%s-sha256" $key) ($token | sha256sum | b64enc) -}}
{{- end -}}
{{- $_ := set .Values "drawnRoleTokens" $data -}}
{{- end -}}
{{- toYaml .Values.drawnRoleTokens -}}
{{- end -}}

{{/* The volumes of a pod: a writable /tmp, and those role tokens that the pod may know. Takes (list context keys). */}}
{{- define "dormouse.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
- name: role-tokens
  secret:
    secretName: {{ include "dormouse.fullname" (index . 0) }}-role-tokens
    defaultMode: 0440
    items:
    {{- range index . 1 }}
    - key: {{ . }}
      path: {{ . }}
    {{- end }}
{{- end -}}

{{/* Where they are mounted. */}}
{{- define "dormouse.volumeMounts" -}}
- name: tmp
  mountPath: /tmp
- name: role-tokens
  mountPath: /var/run/dormouse/tokens
  readOnly: true
{{- end -}}

{{/* Where a pod may run. Takes the component's values. */}}
{{- define "dormouse.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
A component's rights on InferenceDeployments and their children: in each watched namespace a Role, or, when all are
watched, one ClusterRole. Takes (dict context component rules).
*/}}
{{- define "dormouse.watchedRights" -}}
{{- $context := .context -}}
{{- $component := .component -}}
{{- $rules := .rules -}}
{{- $account := dict "kind" "ServiceAccount" "name" (printf "%s-%s" (include "dormouse.fullname" $context) $component) "namespace" $context.Release.Namespace -}}
{{- $name := printf "%s-%s" (include "dormouse.clusterName" $context) $component -}}
{{- $places := $context.Values.watch.namespaces | default (list "") -}}
{{- range $namespace := $places }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "Role" "ClusterRole" (ne $namespace "") }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "dormouse.labels" (list $context $component) | nindent 4 }}
rules:
  {{- $rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ ternary "RoleBinding" "ClusterRoleBinding" (ne $namespace "") }}
metadata:
  name: {{ $name }}
  {{- with $namespace }}
  namespace: {{ . }}
  {{- end }}
  labels:
    {{- include "dormouse.labels" (list $context $component) | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ ternary "Role" "ClusterRole" (ne $namespace "") }}
  name: {{ $name }}
subjects:
- {{ toYaml $account | nindent 2 | trim }}
{{- end }}
{{- end -}}
