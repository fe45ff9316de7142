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

{{- /* Of objects without a namespace: two installations must not meet. */ -}}
{{- define "syrinx.clusterName" -}}
{{- printf "%s.%s" (include "syrinx.fullname" .) .Release.Namespace -}}
{{- end }}

{{- define "syrinx.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "syrinx.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | required "serviceAccount.name: name the ServiceAccount that serviceAccount.create leaves to you" -}}
{{- end -}}
{{- end }}

{{- /* The name label is fixed: the stages' NetworkPolicies let the operator in by it. */ -}}
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

{{- /* (list image defaultTag) to REPOSITORY:TAG, or REPOSITORY@DIGEST. */ -}}
{{- define "syrinx.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 1)) -}}
{{- end -}}
{{- end }}

{{- /* As {namespaces: […]}; empty in cluster-wide mode. */ -}}
{{- define "syrinx.namespaces" -}}
{{- $namespaces := list -}}
{{- if not .Values.clusterWide -}}
{{- $namespaces = .Values.watchNamespaces | default (list .Release.Namespace) -}}
{{- end -}}
{{- dict "namespaces" $namespaces | toYaml -}}
{{- end }}

{{- define "syrinx.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "syrinx.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
