// Package follower fetches the repository, for all clusters of a host: once an
// interval, sooner after a failure, and at once when it is asked to.
//
// It knows neither clusters nor inventories, and keeps nothing but the newest
// result: whoever wants it reads it as often as they like.
package follower
