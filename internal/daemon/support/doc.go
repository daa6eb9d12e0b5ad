// Package support is what can be known of a daemon from outside, also of one that
// does not run: its statuses as they change, what doctor finds, why it does not
// start, and a bundle with everything that somebody needs who helps.
//
// It asks the socket, the host and the files of the config, changes nothing, and
// shows no secret: of the config only values that are known to be none.
package support
