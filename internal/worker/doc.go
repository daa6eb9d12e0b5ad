// Package worker runs a job over bytes that somebody else wrote in a process of its own: what
// unpacks to gigabytes, never ends or brings a library down ends that process, and the
// daemon goes on with one error.
//
// The process is this program again, begun with another argument. It has no environment,
// no open file but its pipes, and bounds of memory and processor time. On Linux it gives
// away the network, other programs and every file but the time zones before it reads a
// byte of the request, as far as the kernel lets it (Landlock, seccomp).
//
// A job may ask its parent while it runs. It must not know what the bytes mean to the
// parent, and nothing here knows what a job does.
package worker
