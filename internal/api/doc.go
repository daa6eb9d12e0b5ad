// Package api is the door of the daemon: HTTP with JSON over a unix socket, and
// the client of it that the sub-commands use.
//
// Who may do what is decided per route and per connection, by the credentials
// the kernel vouches for: reading is for whoever may open the socket (its
// group), changes and secrets are for root. The package knows nothing of how
// the answers come about; it declares the small interface it serves.
package api
