// Package examples holds the example repository, which the program carries for its
// demonstration.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:repo
var files embed.FS

// Repository returns the files of the example repository.
func Repository() fs.FS {
	repo, err := fs.Sub(files, "repo")
	if err != nil {
		panic(err) // the name is right
	}
	return repo
}
