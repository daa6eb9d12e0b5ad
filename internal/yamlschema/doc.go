// Package yamlschema reads YAML files that people write and reports everything
// that is wrong with them at once: each problem with file, line, column, field,
// what is wrong and what to write instead.
//
// A kind of file is a Go struct. Its tags hold the keys and their rules, its
// comments what the keys mean; the decoder, the JSON Schema and the tables of
// the reference are all made from it, so that they cannot disagree. See
// Language for the tags.
//
// What makes one text mean another is refused: unknown keys, wrong types,
// duplicate keys, a second document, anchors, aliases, tags and merge keys.
// Files are bounded in size and depth before and while they are parsed.
//
// The room is pure. It must not know what the files are about, where their
// bytes come from, or how fields depend on each other: whoever decodes a file
// checks that and adds it to the same Report.
package yamlschema
