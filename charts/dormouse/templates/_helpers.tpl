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

{{/* A part's image, by its digest where there is one. Takes (list context part). */}}
{{- define "dormouse.image" -}}
{{- $image := (index . 0).Values.image -}}
{{- $name := printf "%s/%s" (trimSuffix "/" $image.registry) (index . 1) -}}
{{- with get ($image.digests | default dict) (index . 1) -}}
{{- printf "%s@%s" $name . -}}
{{- else -}}
{{- printf "%s:%s" $name ($image.tag | default (index . 0).Chart.AppVersion) -}}
{{- end -}}
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

{{/* A pod's annotations: scraping, and a digest that starts the pods anew when the seeds change. Takes (list context own). */}}
{{- define "dormouse.podAnnotations" -}}
{{- $context := index . 0 -}}
{{- if not $context.Values.roleTokens.existingSecret }}
checksum/role-tokens: {{ include "dormouse.roleTokens" $context | sha256sum }}
{{- end }}
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
The seeds of the roles' keys, as the Secret's data. They are drawn once: an upgrade finds those of the stored Secret. With
another roleTokens.rotation they become the former ones, and new ones are drawn. Within one rendering they are remembered
among the values, because every template that asks must get the same ones.
*/}}
{{- define "dormouse.roleTokens" -}}
{{- if not (hasKey .Values "drawnRoleTokens") -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (printf "%s-role-tokens" (include "dormouse.fullname" .)) -}}
{{- $stored := $secret.data | default dict -}}
{{- $last := get (($secret.metadata | default dict).annotations | default dict) "dormouse.dev/rotation" -}}
{{- $wanted := toString .Values.roleTokens.rotation | default $last -}}
{{- $_ := set .Values "lastRotation" $wanted -}}
{{- $rotates := ne $last $wanted -}}
{{- $data := dict -}}
{{- range $role := list "operator" "gateway" -}}
{{- $key := printf "%s-seed" $role -}}
{{- $former := printf "%s-previous" $key -}}
{{- $seed := get $stored $key -}}
{{- $_ := set $data $key (ternary (randAlphaNum 48 | b64enc) $seed (or $rotates (empty $seed))) -}}
{{- $_ := set $data $former (ternary $seed (get $stored $former) $rotates) -}}
{{- end -}}
{{- $_ := set .Values "drawnRoleTokens" $data -}}
{{- end -}}
{{- toYaml .Values.drawnRoleTokens -}}
{{- end -}}

{{/* The Secret with the seeds: the user's, or ours. */}}
{{- define "dormouse.roleTokensSecret" -}}
{{- .Values.roleTokens.existingSecret | default (printf "%s-role-tokens" (include "dormouse.fullname" .)) -}}
{{- end -}}

{{/*
"true" where operator, gateways and workers prove themselves by certificates, else nothing. Unless a value says so, an
upgrade keeps what the release has: workers of the other kind could not be reached. Without a release to look at they do.
*/}}
{{- define "dormouse.mutualTls" -}}
{{- if kindIs "bool" .Values.mtls.enabled -}}
{{- if .Values.mtls.enabled -}}true{{- end -}}
{{- else -}}
{{- $operator := lookup "apps/v1" "Deployment" .Release.Namespace (printf "%s-operator" (include "dormouse.fullname" .)) -}}
{{- $has := not $operator -}}
{{- if $operator -}}
{{- range $operator.spec.template.spec.containers -}}
{{- range .env -}}
{{- if eq .name "DORMOUSE_MUTUAL_TLS" -}}{{- $has = true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $has -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The names of the Secrets with the certificates of a namespace's workers: no other is ever one of them. */}}
{{- define "dormouse.sharedSecrets" -}}
{{- $names := list -}}
{{- range splitList "" "0123456789abcdef" -}}{{- $names = append $names (printf "dormouse-identities-%s" .) -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{/* The volumes of a pod: a writable /tmp, and the seeds: all, or those that the pod may know. Takes (list context keys). */}}
{{- define "dormouse.volumes" -}}
- name: tmp
  emptyDir:
    sizeLimit: 64Mi
- name: role-tokens
  secret:
    secretName: {{ include "dormouse.roleTokensSecret" (index . 0) }}
    defaultMode: 0440
    {{- with index . 1 }}
    items:
    {{- range . }}
    - key: {{ . }}
      path: {{ . }}
    {{- end }}
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

{{/* Where a pod may run, and before whom. Takes (list context component). */}}
{{- define "dormouse.placement" -}}
{{- $labels := dict "matchLabels" (include "dormouse.selectorLabels" . | fromYaml) -}}
{{- with index (index . 0).Values (index . 1) -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
{{- range .topologySpreadConstraints | default (list (dict "maxSkew" 1 "topologyKey" "kubernetes.io/hostname" "whenUnsatisfiable" "ScheduleAnyway")) }}
- {{ merge (dict) . (dict "labelSelector" $labels) | toYaml | nindent 2 | trim }}
{{- end }}
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

{{/* Labels of every worker pod, which the operator gives. */}}
{{- define "dormouse.workerLabels" -}}
app.kubernetes.io/managed-by: dormouse-operator
app.kubernetes.io/component: worker
{{- end -}}

{{/* The operator's or the gateways' pods as peers of a policy in any namespace. Takes (list context component). */}}
{{- define "dormouse.peer" -}}
{{- $context := index . 0 -}}
podSelector:
  matchLabels:
    {{- include "dormouse.selectorLabels" . | nindent 4 }}
namespaceSelector:
  matchLabels: {kubernetes.io/metadata.name: {{ $context.Release.Namespace }}}
{{- end -}}

{{/*
The rules of which the operator makes each deployment's policy: those of its workers, and, for groups, the ports on which
their pods reach each other (all but the doors of a worker) and what they need to find each other.
*/}}
{{- define "dormouse.workerArrows" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $operators := include "dormouse.peer" (list . "operator") | fromYaml -}}
{{- $gateways := include "dormouse.peer" (list . "gateway") | fromYaml -}}
workers:
  ingress:
  {{- include "dormouse.arrow" (dict "from" (prepend $policy.workerClients $gateways) "ports" (list 50051)) | nindent 2 }}
  {{- include "dormouse.arrow" (dict "from" $policy.scrapers "ports" (list 8080)) | nindent 2 }}
  {{- include "dormouse.arrow" (dict "from" (list $operators) "ports" (list 50052)) | nindent 2 }}
  egress: {{- if not (or $policy.modelHub $policy.extraEgress.worker .Values.tracing.endpoint) }} []{{ end }}
  {{- if or $policy.modelHub .Values.tracing.endpoint }}
  {{- include "dormouse.dnsArrow" . | nindent 2 }}
  {{- end }}
  {{- if $policy.modelHub }}
  {{- include "dormouse.arrow" (dict "to" list "ports" (list 443)) | nindent 2 }}
  {{- end }}
  {{- with include "dormouse.collectorArrow" . }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $policy.extraEgress.worker }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ranks:
  ports:
  - {protocol: TCP, port: 1024, endPort: 50050}
  - {protocol: TCP, port: 50053, endPort: 65535}
  egress:
  {{- include "dormouse.dnsArrow" . | nindent 2 }}
{{- end -}}

{{/* One rule of a NetworkPolicy. Takes (dict ports, and the peers as from or as to; no peers = anybody). */}}
{{- define "dormouse.arrow" -}}
{{- $ports := list -}}
{{- range .ports -}}{{- $ports = append $ports (dict "protocol" "TCP" "port" (int .)) -}}{{- end -}}
{{- $rule := dict "ports" $ports -}}
{{- with .from -}}{{- $_ := set $rule "from" . -}}{{- end -}}
{{- with .to -}}{{- $_ := set $rule "to" . -}}{{- end -}}
- {{ toYaml $rule | nindent 2 | trim }}
{{- end -}}

{{/* The way to the DNS, wherever it runs: in a pod, or on the node. */}}
{{- define "dormouse.dnsArrow" -}}
- ports:
  - {protocol: UDP, port: 53}
  - {protocol: TCP, port: 53}
{{- end -}}

{{/*
The way to the collector of traces, "" without one: its port at any address, as policies know no names. The programs take
443 where the endpoint names no port.
*/}}
{{- define "dormouse.collectorArrow" -}}
{{- with .Values.tracing.endpoint -}}
{{- $port := regexFind ":[0-9]+/?$" . | trimAll ":/" | default "443" -}}
{{- include "dormouse.arrow" (dict "to" list "ports" (list $port)) -}}
{{- end -}}
{{- end -}}

{{/* The way to the API server, which is no pod: by address, where it is told. */}}
{{- define "dormouse.apiServerArrow" -}}
{{- $peers := list -}}
{{- range .Values.networkPolicy.apiServer.cidrs -}}{{- $peers = append $peers (dict "ipBlock" (dict "cidr" .)) -}}{{- end -}}
{{- include "dormouse.arrow" (dict "to" $peers "ports" .Values.networkPolicy.apiServer.ports) -}}
{{- end -}}
