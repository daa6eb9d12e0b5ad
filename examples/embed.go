// Package examples holds the example repository, which the program carries for its
// demonstration, and the addon files, of which it writes some into repositories.
package examples

import (
	"embed"
	"io/fs"
)

//go:embed all:repo addons
var files embed.FS

// Repository returns the files of the example repository.
func Repository() fs.FS {
	repo, err := fs.Sub(files, "repo")
	if err != nil {
		panic(err) // the name is right
	}
	return repo
}

// Addon returns the text of an addon file or, with patches/ before its name, of a
// patch.
func Addon(name string) (string, error) {
	text, err := files.ReadFile("addons/" + name)
	return string(text), err
}
