{{- define "syrinx.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains "syrinx-operator" .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else if contains "syrinx" .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-syrinx-operator" (.Release.Name | trunc 47 | trimSuffix "-") -}}
{{- end -}}
{{- end }}

{{- /* Name of cluster-scoped objects, unique for each installation. */ -}}
{{- define "syrinx.clusterName" -}}
{{- printf "%s.%s" (include "syrinx.fullname" .) .Release.Namespace -}}
{{- end }}

{{- define "syrinx.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "syrinx.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | required "serviceAccount.name is required if serviceAccount.create is false" -}}
{{- end -}}
{{- end }}

{{- /* The name label is fixed: the stages' NetworkPolicies select the operator by it. */ -}}
{{- define "syrinx.selectorLabels" -}}
app.kubernetes.io/name: syrinx-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "syrinx.labels" -}}
{{ include "syrinx.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: syrinx
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* (list $ "image" defaultTag): REPOSITORY:TAG or REPOSITORY@DIGEST of the image in .Values.image. */ -}}
{{- define "syrinx.image" -}}
{{- $name := index . 1 -}}
{{- $image := index (index . 0).Values $name -}}
{{- $repository := $image.repository | required (printf "%s.repository is required: build the image (make images), push it and set its name" $name) -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default (index . 2)) -}}
{{- end -}}
{{- end }}

{{- /* {namespaces: […]}; empty with clusterWide. */ -}}
{{- define "syrinx.namespaces" -}}
{{- $namespaces := list -}}
{{- if not .Values.clusterWide -}}
{{- $namespaces = .Values.watchNamespaces | default (list .Release.Namespace) -}}
{{- end -}}
{{- dict "namespaces" $namespaces | toYaml -}}
{{- end }}

{{- define "syrinx.podSecurity" -}}
runAsNonRoot: true
{{- if .Values.fixedUser }}
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "syrinx.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
