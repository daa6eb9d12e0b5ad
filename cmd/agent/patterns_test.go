package main

import (
	"regexp"
	"testing"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// TestPatterns: what this program compiles when it is needed is an expression. All packages are in here.
func TestPatterns(t *testing.T) {
	for _, p := range pattern.All {
		if _, err := regexp.Compile(p.String()); err != nil {
			t.Error(err)
		}
	}
	if len(pattern.All) < 100 {
		t.Errorf("there are %d patterns", len(pattern.All))
	}
}
