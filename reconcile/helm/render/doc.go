// Package render reads and renders charts, which are foreign code, in a worker: a process
// of its own without network, files or time without end. What a chart unpacks to, its YAML,
// its schemas and its templates are looked at nowhere else; the parent gets texts that the
// worker could read within its bounds.
//
// A template may look up objects of the cluster: the worker asks its parent for them.
//
// It must not know how a chart was fetched, nor what becomes of what it renders.
package render
