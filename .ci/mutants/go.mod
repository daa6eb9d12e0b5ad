module github.com/talos-agent/talos-agent/.ci/mutants

go 1.26
