// Package machineconfig turns an inventory and its secrets into the machine
// config of every node, and reports beforehand what is wrong with them:
// versions that do not go together, patches that do not fit, configs that Talos
// would refuse. It also makes the secrets bundle a cluster begins with and the
// client certificates that open the cluster.
//
// Everything here is a pure function of its arguments, apart from the random
// numbers in new keys. It must not know where files come from, how a machine
// is reached or what the planner decides; it never touches the network, the
// file system or the clock.
//
// The shape of a config follows the cluster's version contract, the Talos
// minor at which the cluster was made, because newer Talos accepts old shapes
// but not the other way round. Where a setting goes at which contract is one
// table, in settings.go, and nothing else branches on the contract.
package machineconfig
