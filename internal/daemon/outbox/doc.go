// Package outbox holds what waits to be sent to one place: the newest value
// about each subject, tried again until it arrives, and no more often than the
// place can bear.
//
// It knows neither what is sent nor to whom, keeps nothing on disk, and logs
// nothing: whoever sends decides what is the same, how to send it, and what to do
// with the outcome of each attempt.
package outbox
