// Package edits finds what somebody changed of an object that a manifest describes, and who
// has written a field of any object. The
// API server notes in metadata.managedFields who set which field and when; a field that
// somebody else than Helm has set, and that has another value than in the manifest, is
// an edit. What the manifest does not set does not matter here, and so is what was
// removed, of which nothing is noted, but for what a ConfigMap or a Secret holds.
//
// It asks no system: it is handed the object as it is and as it should be.
package edits
