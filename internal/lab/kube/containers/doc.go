// Package containers is the kubelet's side of pods in the Kubernetes service of the
// lab: the states of containers that it writes into a pod's status, and what it answers
// about them, logs and commands. No program runs in a container of the lab, so logs
// hold what the kubelet did, and no command is found. It must not know where pods
// are kept, nor when what happens to them.
package containers
