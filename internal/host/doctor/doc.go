// Package doctor answers whether everything is there that the agent needs on
// its host, and what to do about what is not: the privileges of its token, the
// storages and bridges that the inventory names, the way to the sources of
// images and charts, clocks, addresses and the modes of files.
//
// It is pure: it is given what was seen, by the agent with its own credentials
// (Agent) and by root on the host (Host), every fact with the reason when it
// could not be seen, and returns checks. What is not known is never judged: it
// is skipped, and the check shows why.
//
// It must not know how anything is seen, read a clock, or speak to anybody.
package doctor
