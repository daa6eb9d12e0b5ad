// Package notify carries words to people and programs: a POST of JSON to a web
// address, or a message over one of the chat, push and mail services of shoutrrr.
// It sends one notice, and keeps nothing: no queue, no memory of what it sent.
//
// The address of a target is a secret: whoever knows it can post there, and most
// hold a token. It is in no error and in no log, whatever the service or the
// library answers. A web address is never asked over plain HTTP on another
// machine.
//
// The package must not know what a notice means or when one is due.
package notify
