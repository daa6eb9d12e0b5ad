// Package schema is Proxmox VE's own description of the API, as far as the simulated
// one has it: the parameters of each method, with the formats of their values, and
// the privileges that it asks for. It holds parameters against that, in Proxmox
// VE's words. It must not know what a method does, nor who has which privilege.
package schema
