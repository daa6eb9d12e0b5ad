module github.com/talos-agent/talos-agent/.ci/analyzers

go 1.26.0

require (
	github.com/polyfloyd/go-errorlint v1.8.0
	github.com/sivchari/containedctx v1.0.3
	go-simpler.org/sloglint v0.12.0
	golang.org/x/tools v0.52.0
)

require (
	github.com/ettle/strcase v0.2.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)
