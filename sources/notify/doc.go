// Package notify carries words to people and programs: a POST of JSON to a web
// address, or a message over one of the chat, push and mail services that
// shoutrrr speaks to. It sends one notice, and keeps nothing: no queue, no memory
// of what it said.
//
// The address of a target is a secret: whoever knows it can speak there, and most
// hold a token. It is in no error and in no log, whatever the service or the
// library says. A web address is never asked over plain HTTP on another machine.
//
// The package must not know what a notice means or when one is due.
package notify
