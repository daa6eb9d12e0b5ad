package main

import (
	"testing"

	"github.com/talos-agent/talos-agent/internal/pattern"
)

// TestPatterns: what this program compiles when it is needed is an expression. All packages are in here.
func TestPatterns(t *testing.T) {
	made, err := pattern.Check()
	if err != nil {
		t.Error(err)
	}
	if made < 100 {
		t.Errorf("there are %d patterns", made)
	}
}
