// Package helm sees and changes the addons of a cluster: it brings their charts
// into the host's cache, installs and upgrades Helm releases, and reports
// whether the workloads of a release are ready. It is the only importer of
// Helm.
//
// A chart comes from an https repository, an OCI registry or a directory of the
// inventory, and is known by its digest ever after. A release carries, in
// labels of the secret Helm keeps it in, the digest of the chart and values it
// was made from and the revision it was made as; a release without them is
// somebody else's and is left alone.
//
// Helm never waits here: Install returns when the objects are written, and
// whether they become ready is seen later, by the rules of kubectl's rollout
// status. What of a release somebody has deleted is seen too, workloads at once and
// others by a search once in a while. Charts are foreign code. They are rendered without name lookups,
// plugins or post-renderers, from archives whose size and shape were checked,
// and what Helm reports about them is scrubbed of the values before it is
// shown.
//
// The package must not know what is planned, in which order addons depend on
// each other, or how nodes come to be.
package helm
