// Analyzers runs the analyzers that neither vet nor staticcheck has, as a tool of
// go vet: what was looked at once is not looked at again until it changes.
package main

import (
	"github.com/polyfloyd/go-errorlint/errorlint"
	"github.com/sivchari/containedctx"
	"go-simpler.org/sloglint"
	"golang.org/x/tools/go/analysis/unitchecker"
)

func main() {
	unitchecker.Main(
		errorlint.NewAnalyzer(),
		sloglint.New(&sloglint.Options{NoGlobalLogger: "all", NoMixedArguments: true, KeyNamingCase: "snake", StaticMessage: true}),
		containedctx.Analyzer,
	)
}
