// Package plumbing is what a service needs that is not of Kubernetes: which connections it has open,
// who is inside of it when it closes, and what it has planned.
package plumbing
