module dormouse.dev/tests/platforms/definitions

go 1.26.0

require (
	sigs.k8s.io/gateway-api v1.6.0
	sigs.k8s.io/gateway-api-inference-extension v1.3.0
)
