// Package openapi describes the API of the lab's Kubernetes in OpenAPI v3, as far as
// clients read it: kubectl explain the fields of kinds, and kubectl and Helm that the
// server checks fields itself, so that they leave it to that. It must not know which
// resources there are, nor who asks.
package openapi
