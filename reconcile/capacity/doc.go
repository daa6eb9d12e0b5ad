// Package capacity counts what room hosts and storages have for the VMs of a cluster: what
// they have, less what is promised to guests that are there or are being made. It is pure;
// who gets the room, and in what order, is the planner's.
package capacity
