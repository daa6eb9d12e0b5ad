// Package snapshots has the running agent keep snapshots of etcd: it brings what a member
// sends to the store, with what is known of the cluster, and shows the planner what there is. When
// one is taken is for the planner, and what a snapshot is for the store.
package snapshots
