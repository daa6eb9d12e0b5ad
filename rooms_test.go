package talosagent

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// room is one folder of the house: which of our rooms it may import, which
// packages from outside it must never import, and why.
type room struct {
	why   string
	may   []string
	never []string
	tests []string // what its tests may import besides
}

// Clients that talk to the outside world, by import path prefix.
var clients = []string{
	"github.com/luthermonson/go-proxmox", "github.com/siderolabs/talos", "k8s.io", "helm.sh",
	"github.com/go-git", "github.com/getsops", "google.golang.org/grpc",
}

// rooms are the import rules: whatever is not listed is forbidden. Arrows point
// one way only; the two doors, sources and reconcile, never know each other.
var rooms = map[string]room{
	"": {why: "the module's top holds only these checks"},
	"internal/cluster": {why: "the nouns are shared by all, so they may depend on nothing but the values that they are made of",
		may: []string{"internal/cluster/availability", "internal/cluster/device", "internal/cluster/forward", "internal/cluster/window", "internal/cluster/usage", "internal/cluster/values", "internal/cluster/dualstack"}, never: append([]string{"os", "net/http", "go.yaml.in"}, clients...)},
	"internal/cluster/values": {why: "pure: a part of the nouns, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},

	"internal/cluster/clock": {why: "pure: values, which are handed the time, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"internal/cluster/window": {why: "pure: a value of the nouns, so it may depend on nothing; it is handed the time",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},

	"internal/cluster/device": {why: "pure: values of the nouns, each spelled as Proxmox VE has it, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},
	"internal/cluster/dualstack": {why: "pure: values of the nouns, and the arithmetic of addresses, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},
	"internal/cluster/forward": {why: "pure: a value of the nouns, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},
	"internal/cluster/availability": {why: "pure: values, each spelled as Proxmox VE has it, so it may depend on nothing",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},
	"internal/cluster/usage": {why: "pure: values, which the socket carries and the terminal shows; it is handed what was measured",
		never: append([]string{"os", "net", "net/http", "go.yaml.in", "math/rand", "math/rand/v2"}, clients...)},

	"internal/yamlschema": {why: "its problems carry places, which are nouns; it is handed bytes and opens nothing",
		may: []string{"internal/cluster", "internal/cluster/dualstack", "internal/text"}, never: append([]string{"os", "net", "net/http", "math/rand"}, clients...)},

	"sources": {why: "joins what should be out of the repository, its secrets and its files; knows no system that is changed",
		may:   []string{"sources/git", "sources/secrets", "sources/inventory", "internal/cluster", "internal/fault"},
		never: []string{"github.com/getsops", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"sources/git": {why: "dials with the authorities of the config; decrypts and parses nothing",
		may: []string{"internal/certpool", "internal/fault", "internal/text", "internal/logging", "internal/platform", "internal/worker"}, never: []string{"github.com/getsops", "k8s.io", "helm.sh", "os/exec"},
		tests: []string{"internal/worker/workertest"}},
	"sources/secrets": {why: "decrypts in memory, so it may not reach a file, a program or the network", may: []string{"internal/fault", "internal/text"},
		never: []string{"os", "os/exec", "net/http", "github.com/getsops/sops/v3/decrypt"}},
	"sources/secrets/transit": {why: "its own small client of one request, with the authorities of the config",
		may: []string{"internal/certpool", "internal/fault", "internal/text", "sources/secrets"}, never: append([]string{"os", "github.com/hashicorp"}, clients...)},
	"sources/forge": {why: "its own small client of commit statuses, with the authorities of the config",
		may: []string{"internal/certpool", "internal/fault", "internal/text"}, never: clients},
	"sources/notify": {why: "its own small clients of chat services, with the authorities of the config",
		may: []string{"internal/certpool", "internal/fault", "internal/text"}, never: append([]string{"os"}, clients...)},
	"sources/webhook": {why: "judges a request that it is handed",
		may: []string{"internal/logging"}, never: append([]string{"os"}, clients...)},
	"sources/inventory/jobs": {why: "one kind of file that it is handed to a noun, with places",
		may: []string{"internal/cluster", "internal/yamlschema"}, never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"sources/inventory/subnets": {why: "pure: counts addresses, whosever they are",
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand"}, clients...)},
	"sources/inventory": {why: "files that it is handed to nouns, with places; the same files give the same answer anywhere",
		may: []string{"internal/cluster", "internal/cluster/dualstack", "internal/cluster/forward", "internal/cluster/device", "internal/cluster/window", "internal/gate", "internal/yamlschema", "internal/fault", "sources/inventory/jobs", "sources/inventory/subnets"}, never: append([]string{"os", "net", "net/http", "math/rand"}, clients...)},

	"reconcile": {why: "the loop meets the systems through its own interfaces, so it knows the planner and the nouns alone",
		may: []string{"reconcile/settled", "internal/cluster", "internal/cluster/clock", "internal/cluster/availability", "reconcile/action", "reconcile/drift", "reconcile/journal", "reconcile/leftover", "reconcile/lost", "reconcile/placement", "reconcile/plan", "reconcile/readiness", "reconcile/snapshot/retention", "internal/fault", "internal/logging", "internal/text", "internal/retry", "reconcile/bounds", "reconcile/quorum", "reconcile/upgrade", "internal/cluster/dualstack"}, never: append([]string{"net", "net/http"}, clients...)},
	"reconcile/journal": {why: "what must outlive the agent, through an interface of the few steps of a file system",
		may: []string{"internal/cluster", "internal/fault", "internal/text"}, never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"reconcile/journal/journaltest": {why: "for tests only, a leaf: a file system in memory that dies at any step", never: clients},
	"reconcile/action": {why: "pure: what can be done, as values; doing it is for others; what a snapshot is for is a value of retention",
		may:   []string{"internal/cluster", "internal/cluster/availability", "internal/text", "reconcile/drift", "reconcile/snapshot/retention"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/leases": {why: "pure: which of the addresses that were seen is a node's",
		may:   []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/bounds": {why: "pure: holds an inventory against the host's policy",
		may:   []string{"internal/cluster", "internal/cluster/device", "internal/text", "internal/fault"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...), tests: []string{"internal/cluster/window", "internal/cluster/forward"}},
	"reconcile/drift": {why: "pure: compares what is with what should be",
		may:   []string{"internal/cluster", "internal/cluster/device", "internal/text", "reconcile/ladder", "reconcile/quorum"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/rendering": {why: "pure: shows what drift compares and machineconfig renders, without the secrets",
		may:   []string{"internal/cluster", "reconcile/drift", "reconcile/machineconfig", "reconcile/quorum"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/quorum": {why: "pure: what becomes of etcd without a member",
		may:   []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/upgrade": {why: "pure: which versions the nodes are to have now, on the way to those of the inventory",
		may:   []string{"internal/cluster", "internal/text", "reconcile/bounds", "reconcile/drift", "reconcile/ladder", "reconcile/quorum", "reconcile/upgrade/components"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...), tests: []string{"internal/cluster/window"}},
	"internal/gate": {why: "pure: evaluates conditions of people over values that it is handed",
		may:   []string{"internal/text"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"internal/gate/trial": {why: "has a worker evaluate conditions; knows no connection",
		may:   []string{"internal/gate", "internal/worker"},
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/ladder": {why: "pure: the hops from versions to others",
		may:   []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/upgrade/components": {why: "pure: what of Kubernetes each node is to run now, on the way of an upgrade",
		may:   []string{"internal/text", "internal/cluster", "reconcile/ladder", "reconcile/readiness"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/readiness": {why: "pure: where a node stands, for the planner and the status alike",
		may:   []string{"internal/cluster", "internal/text", "reconcile/drift"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...), tests: []string{"internal/cluster/availability"}},
	"reconcile/budget": {why: "pure: how many nodes may be out of service at once, and which are",
		may:   []string{"internal/cluster", "reconcile/action"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/capacity": {why: "pure: what room hosts and storages have for VMs",
		may:   []string{"internal/cluster", "internal/cluster/device", "internal/text"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/placement": {why: "pure: chooses hosts for VMs by the room that capacity counts",
		may:   []string{"internal/cluster", "internal/cluster/usage", "internal/text", "reconcile/capacity"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...), tests: []string{"internal/cluster/device"}},
	"reconcile/settled": {why: "pure: which nodes are as the inventory has them",
		may:   []string{"internal/cluster", "reconcile/drift", "reconcile/readiness"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/ha": {why: "pure: what Proxmox VE's HA manager is to do about the VMs of a cluster",
		may:   []string{"internal/cluster", "internal/cluster/availability", "reconcile/upgrade"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/leftover": {why: "pure: what is left of machines that the inventory does not have",
		may:   []string{"internal/cluster", "internal/text", "reconcile/quorum", "reconcile/readiness"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/lost": {why: "pure: which machines do not come back",
		may:   []string{"internal/cluster", "internal/text", "reconcile/leftover", "reconcile/quorum", "reconcile/readiness"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/effect": {why: "pure: what becomes of a cluster after an action, for the forecast",
		may:   []string{"internal/cluster", "internal/cluster/availability", "reconcile/action", "reconcile/drift", "reconcile/ha", "reconcile/readiness"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/plan": {why: "pure: the same input gives the same plan, so no clock, no chance, no system",
		may:   []string{"internal/cluster", "internal/cluster/availability", "reconcile/ha", "internal/cluster/window", "internal/text", "reconcile/action", "reconcile/bounds", "reconcile/budget", "reconcile/capacity", "reconcile/drift", "reconcile/effect", "reconcile/leftover", "reconcile/lost", "reconcile/placement", "reconcile/quorum", "reconcile/readiness", "reconcile/snapshot/retention", "reconcile/ladder", "reconcile/upgrade", "reconcile/upgrade/components"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...), tests: []string{"internal/cluster/usage", "reconcile/settled"}},
	"reconcile/machineconfig": {why: "pure: renders from what it is handed; speaks with no machine",
		may: []string{"internal/cluster", "internal/cluster/device", "internal/fault"}, never: []string{"os", "net", "net/http", "helm.sh", "k8s.io", "github.com/siderolabs/talos/pkg/machinery/client"},
		tests: []string{"internal/cluster/dualstack"}},
	"reconcile/factory": {why: "one system; shows its errors in one line, dials with the authorities of the config",
		may: []string{"internal/cluster", "internal/text", "internal/certpool", "internal/fault", "internal/retry", "internal/logging", "internal/platform"}, never: clients},
	"reconcile/proxmox": {why: "one system; shows its errors in one line",
		may: []string{"internal/cluster", "internal/cluster/availability", "internal/cluster/device", "internal/text", "internal/fault", "internal/retry", "internal/logging", "reconcile/proxmox/accesslog", "reconcile/proxmox/ha", "reconcile/proxmox/hardware", "reconcile/proxmox/pace", "reconcile/proxmox/pveconf", "reconcile/proxmox/recent", "reconcile/proxmox/turns", "reconcile/proxmox/usage", "internal/cluster/usage"}, never: []string{"github.com/siderolabs/talos", "k8s.io", "helm.sh", "os/exec"},
		tests: []string{"internal/lab/pve/ha", "internal/cluster/dualstack"}},
	"reconcile/proxmox/accesslog": {why: "reads one file that it is named; knows no request of ours, no node and no clock",
		may: []string{"internal/fault", "internal/platform"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/ha": {why: "asks and changes what one part of one system holds, over requests that it is handed; proves no VM",
		may: []string{"internal/cluster", "internal/cluster/availability", "internal/fault", "internal/retry", "reconcile/proxmox/pveconf"}, never: append([]string{"os", "os/exec", "net", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/hardware": {why: "pure: reads what hardware a VM has, in the terms of the inventory, from options that it is handed, and spells the options that make or change a VM",
		may: []string{"internal/cluster", "internal/cluster/device", "reconcile/proxmox/pveconf"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/pace": {why: "pure but for what it has learnt: says how long to pause; asks nobody",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/recent": {why: "remembers answers to questions that others ask",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/turns": {why: "lets one at a time go; asks nobody",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/usage": {why: "asks one system what is in use, over requests that it is handed",
		may: []string{"internal/cluster/usage", "internal/text", "reconcile/proxmox/pveconf"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/proxmox/pveconf": {why: "pure: reads and spells values that it is handed; knows no request and no node",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/talos/answers": {why: "pure: what the errors mean with which Talos answers", never: []string{"github.com/siderolabs", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh", "net", "net/http", "os"}},
	"reconcile/talos/redaction": {why: "pure: takes secrets of a machine config out of words",
		may: []string{"internal/text"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/talos/installer": {why: "asks one machine over a connection that it is handed; proves none",
		may: []string{"internal/cluster", "internal/text", "internal/fault", "internal/retry"}, never: []string{"github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh", "log", "log/slog"}},
	"reconcile/talos": {why: "one system; shows its errors in one line",
		may: []string{"internal/cluster", "internal/text", "internal/fault", "internal/retry", "internal/logging", "reconcile/talos/answers", "reconcile/talos/etcdmember", "reconcile/talos/etcdstream", "reconcile/talos/installer", "reconcile/talos/redaction", "reconcile/talos/rendered"}, never: []string{"github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"},
		tests: []string{"internal/lab/talos/installer"}},
	"reconcile/talos/rendered": {why: "a leaf: reads the manifests of one machine, on a connection that it is handed",
		never: []string{"os", "os/exec", "net", "net/http", "log", "log/slog", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"reconcile/talos/etcdmember": {why: "a leaf: asks the etcd of one machine, over a connection that it is handed",
		may: []string{"internal/cluster", "internal/text"}, never: []string{"os", "os/exec", "net", "net/http", "log", "log/slog", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"reconcile/talos/etcdstream": {why: "a leaf: reads one stream of a machine, on a connection that it is handed",
		may: []string{"internal/retry"}, never: []string{"os", "os/exec", "net", "net/http", "log", "log/slog", "github.com/luthermonson/go-proxmox", "k8s.io", "helm.sh"}},
	"reconcile/kube": {why: "one system, over connections that kubeapi makes",
		may: []string{"internal/cluster", "internal/gate", "internal/gate/trial", "internal/kubeapi", "internal/text", "internal/fault", "internal/retry", "internal/logging", "internal/worker", "reconcile/edits", "reconcile/kube/releases"}, never: []string{"github.com/luthermonson/go-proxmox", "helm.sh"},
		tests: []string{"internal/worker/workertest"}},
	"reconcile/kube/releases": {why: "reads what Helm keeps of releases, as the room that makes them does, over a connection that it is handed",
		may: []string{"internal/cluster", "internal/kubeapi", "reconcile/helm/record"}, never: []string{"os", "os/exec", "log", "log/slog", "helm.sh", "github.com/siderolabs/talos", "github.com/luthermonson/go-proxmox"}},
	"reconcile/kube/manifests": {why: "one system, over connections that kubeapi makes; where the manifests come from it is handed",
		may: []string{"internal/cluster", "internal/kubeapi", "reconcile/edits", "reconcile/ladder"}, never: []string{"os", "os/exec", "log", "log/slog", "github.com/luthermonson/go-proxmox", "github.com/siderolabs/talos", "helm.sh"}, tests: []string{"internal/lab/kube/system"}},
	"reconcile/helm": {why: "one system, over connections that kubeapi makes; fetches charts by itself, with the authorities of the config",
		may: []string{"internal/cluster", "internal/kubeapi", "internal/text", "internal/certpool", "internal/fault", "internal/retry", "internal/logging", "internal/platform", "internal/worker", "reconcile/edits", "reconcile/helm/record", "reconcile/helm/render"}, never: []string{"helm.sh/helm/v3/pkg/cli", "helm.sh/helm/v3/pkg/getter", "os/exec"},
		tests: []string{"internal/worker/workertest"}},
	"reconcile/helm/record": {why: "a pure leaf: unpacks bytes that it is handed",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/helm/render": {why: "reads and renders charts in a worker; knows no connection, and no cache",
		may: []string{"internal/fault", "internal/text", "internal/worker"}, never: []string{"helm.sh/helm/v3/pkg/cli", "helm.sh/helm/v3/pkg/getter", "helm.sh/helm/v3/pkg/kube", "os", "os/exec", "net", "net/http", "log", "log/slog"}},
	"reconcile/snapshot": {why: "etcd snapshots at rest: the format and the store, on the pure rooms below; which keys there are, and where the bytes come from, it is handed",
		may: []string{"internal/fault", "internal/platform", "internal/text", "reconcile/snapshot/database", "reconcile/snapshot/retention"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog", "go.etcd.io", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/snapshot/database": {why: "pure: reads the pages of a database that it is handed, within bounds and without a mapping of memory",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "unsafe", "go.etcd.io", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/snapshot/snapshottest": {why: "makes snapshots for tests",
		never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"reconcile/snapshot/retention": {why: "pure: which snapshots are kept, when one is due, and what waits for one, by values",
		may:   []string{"internal/cluster", "internal/text"},
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"reconcile/edits": {why: "a pure leaf: what of an object is not as a manifest has it because somebody set it, and who wrote a field; handed both, it asks no system",
		never: []string{"os", "os/exec", "net", "net/http", "log", "log/slog", "helm.sh", "k8s.io/client-go"}},

	"internal/host/config": {why: "reads the host's files into the Config of every room that has one, and asks those rooms whether they could work with it, so that a mistake is found with its line before anything starts",
		may:   []string{"internal/cluster", "internal/cluster/device", "internal/fault", "internal/yamlschema", "internal/history", "internal/host/doctor", "internal/platform", "reconcile/proxmox", "sources/forge", "sources/git", "sources/inventory", "sources/notify", "sources/secrets", "sources/secrets/transit"},
		never: append([]string{"os/exec", "net", "net/http"}, clients...), tests: []string{"internal/cluster/window"}},
	"internal/host/archive": {why: "etcd snapshots in a folder for a person at a terminal: reads keys (secrets) with the bounds for files that a command line names (config), and has the store do the work",
		may:   []string{"internal/fault", "internal/host/config", "internal/platform", "internal/text", "reconcile/snapshot", "reconcile/snapshot/database", "reconcile/snapshot/retention", "sources/secrets"},
		never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...), tests: []string{"internal/host/hosttest", "reconcile/snapshot/snapshottest"}},
	"internal/host/state": {why: "the file system of the reconciler's journal, with the journal's hint where it cannot be written",
		may: []string{"reconcile/journal", "internal/fault", "internal/platform"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/host/harden": {why: "a leaf: changes this process only",
		never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/host/probe": {why: "finds the facts that doctor and setup judge, in their words; reads files with the limits of the config's loader",
		may:   []string{"internal/cluster", "internal/fault", "internal/retry", "internal/text", "internal/host/config", "internal/host/doctor", "internal/host/setup"},
		never: append([]string{"net/http", "log", "log/slog"}, clients...)},
	"internal/host/setup/wizard": {why: "joins what is seen of the host, what the person and the flags say and the steps of setup; holds what it would write against the rules of the rooms that will read it",
		may: []string{"internal/cluster", "internal/dialog", "internal/fault", "internal/host/config", "internal/host/probe", "internal/host/setup", "internal/platform",
			"packaging/deb", "sources/git", "sources/secrets"},
		never: append([]string{"net/http", "os/exec", "log", "log/slog", "github.com/spf13"}, clients...)},
	"internal/contexts": {why: "pure: the form of the files of kubectl and talosctl, whoever reads them from disk",
		never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/dialog": {why: "a leaf: questions and answers at a terminal",
		may: []string{"internal/fault"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/host/setup/account": {why: "pure: which account a program in a cluster needs, in the steps of setup; the room that stores its secret carries them out",
		may: []string{"internal/cluster", "internal/host/setup"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"}, clients...)},
	"internal/host/setup": {why: "pure: says which steps a host needs; the wizard carries them out",
		may: []string{"internal/cluster", "internal/cluster/availability"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2", "crypto/rand"}, clients...)},
	"internal/fault": {why: "a leaf: the one error with a hint",
		never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/retry": {why: "a leaf: waits that a context ends",
		never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/logging": {why: "the log's handlers and keys; an error is one line of it",
		may: []string{"internal/text"}, never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/callgate": {why: "counts calls of every protocol, so it knows no client but that of gRPC",
		never: clients[:len(clients)-1]},
	"internal/pattern": {why: "a leaf: regular expressions that are compiled late",
		never: append([]string{"os", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/text": {why: "a leaf: cuts and cleans one string",
		never: append([]string{"net/http", "log", "log/slog"}, clients...)},
	"internal/platform": {why: "a leaf: what of files differs between operating systems",
		never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/worker": {why: "a leaf: begins this program again and confines it, whatever the job",
		never: append([]string{"net", "net/http", "log", "log/slog"}, clients...)},
	"internal/certpool": {why: "a leaf: parses certificates that it is handed",
		never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/kubeapi": {why: "connections to a kube-apiserver, for kube and helm",
		may:   []string{"internal/cluster", "internal/text"},
		never: []string{"github.com/siderolabs/talos", "github.com/luthermonson/go-proxmox", "helm.sh", "os/exec"}},

	"internal/host/addresses": {why: "a leaf: which addresses are seen on this host's networks, whoever's they are",
		never: append([]string{"os/exec", "net/http", "log", "log/slog"}, clients...)},
	"internal/host/doctor": {why: "pure: judges facts that others have collected",
		may: []string{"internal/cluster", "internal/cluster/availability", "internal/fault"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand"}, clients...), tests: []string{"internal/cluster/device"}},

	"internal/repo/creation": {why: "joins scaffold, sealed and validation to a repository on disk; config and probe are the host it is for, proxmox what is free there, sources and inventory whether the agent could read it",
		may: []string{"internal/cluster", "internal/fault", "internal/host/config", "internal/host/probe", "internal/repo/scaffold", "internal/repo/sealed", "internal/repo/validation",
			"reconcile/proxmox", "sources", "sources/inventory"}, never: append([]string{"net", "net/http", "log", "log/slog"}, clients...)},
	"internal/repo/demo": {why: "shows a lab (pvehost) and an agent's socket (api) on a terminal; the agent is a process, not an import",
		may: []string{"internal/api", "internal/cluster", "internal/fault", "internal/lab", "internal/lab/pvehost", "internal/lab/world", "internal/retry", "internal/terminal", "internal/text"}, never: []string{"log", "log/slog", "github.com/luthermonson/go-proxmox", "github.com/siderolabs/talos", "helm.sh", "github.com/go-git"}},
	"internal/repo/rehearsal": {why: "joins the lab and an agent as it is (daemon/agent, with the Config of its rooms): proxmox, factory and helm are pointed at the lab, validation says what is valid, machineconfig makes throw-away keys",
		may:   []string{"internal/cluster", "internal/cluster/device", "internal/daemon/agent", "internal/host/state", "internal/lab", "internal/lab/charts", "internal/lab/gitserver", "internal/lab/pve", "internal/repo/validation", "internal/retry", "reconcile/factory", "reconcile/helm", "reconcile/machineconfig", "reconcile/proxmox", "sources", "sources/git", "sources/inventory", "reconcile/leases"},
		never: append([]string{"os/exec", "net", "net/http"}, clients...)},
	"internal/repo/importing": {why: "puts an inventory out of foreign files (formats, draft) into a repository, when validation has checked it; config has the bounds for files that a command line names, sources and inventory whether the agent could read it there",
		may: []string{"internal/cluster", "internal/fault", "internal/host/config", "internal/repo/importing/draft", "internal/repo/importing/formats", "internal/repo/validation", "sources", "sources/inventory"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"internal/repo/importing/draft": {why: "pure: an inventory that is not complete yet, and its text; knows no foreign description and no rule of the inventory",
		may: []string{"internal/cluster"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},
	"internal/repo/importing/formats": {why: "pure: foreign descriptions, which nobody has checked, to drafts; inventory has the keys there are, and what it answers to others",
		may: []string{"internal/cluster", "internal/fault", "internal/repo/importing/draft", "sources/inventory"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...),
		tests: []string{"internal/yamlschema"}},
	"internal/repo/validation": {why: "reads a directory as the agent does (sources), renders it (machineconfig), for people too (rendering), and holds it against the planner and the host's policy (bounds); config has the policy's language, and the bounds for files that a command line names",
		may: []string{"internal/cluster", "internal/fault", "internal/host/config", "reconcile/bounds", "reconcile/machineconfig", "reconcile/plan", "reconcile/rendering",
			"sources", "sources/inventory", "sources/secrets"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/repo/sealed": {why: "reads a directory as the agent does (sources), makes a bundle (machineconfig) and encrypts it (secrets); config has the bounds for files that a command line names",
		may: []string{"internal/cluster", "internal/fault", "internal/host/config", "internal/platform", "reconcile/machineconfig",
			"sources", "sources/inventory", "sources/secrets"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/repo/tokens": {why: "joins account, the host that it is made on (probe, config for its policy and key) and a repository (sources, sealed for its place, secrets); examples has the addon files",
		may: []string{"examples", "internal/cluster", "internal/fault", "internal/host/config", "internal/host/probe", "internal/host/setup", "internal/host/setup/account", "internal/platform",
			"internal/repo/sealed", "sources", "sources/secrets"}, never: append([]string{"os/exec", "net", "net/http", "log", "log/slog"}, clients...)},
	"internal/repo/scaffold": {why: "pure: writes the text of files, which others store",
		may: []string{"internal/cluster"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog", "math/rand"}, clients...)},

	"internal/api": {why: "carries statuses and findings over the socket, and bounds who may connect",
		may: []string{"internal/cluster", "internal/cluster/usage", "internal/host/doctor", "internal/httpserver", "internal/fault", "internal/text", "internal/logging"}, never: clients},
	"internal/httpserver": {why: "a leaf: bounds any server of ours",
		may: []string{"internal/logging"}, never: clients},
	"internal/terminal": {why: "prints the nouns for people: text has lines and durations, history the causes whose runs are shown",
		may: []string{"internal/cluster", "internal/cluster/usage", "internal/history", "internal/text"}, never: append([]string{"net", "net/http", "log", "log/slog", "os/exec"}, clients...)},
	"internal/metrics": {why: "counts what the nouns report; others serve it",
		may: []string{"internal/cluster"}, never: append([]string{"os", "log/slog"}, clients...)},
	"internal/history": {why: "keeps what the nouns report; others store it",
		may:   []string{"internal/cluster"},
		never: append([]string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}, clients...)},

	"internal/daemon": {why: "the service around an agent: turns the host's config into an agent and serves it, so it meets every room that has a Config, and no rule about clusters",
		may: []string{"internal/logging", "internal/api", "internal/callgate", "internal/cluster", "internal/daemon/agent", "internal/daemon/election", "internal/daemon/eventlog",
			"internal/daemon/outbox", "internal/daemon/reporting", "internal/daemon/sandbox", "reconcile/journal", "reconcile/proxmox", "internal/fault", "internal/history", "internal/host/config", "internal/host/doctor", "internal/host/addresses",
			"internal/host/harden", "internal/host/probe", "internal/host/state", "internal/httpserver", "internal/metrics", "internal/text", "reconcile/factory", "reconcile/helm", "reconcile/leases",
			"internal/daemon/forwards", "internal/daemon/reservations", "internal/daemon/snapshots", "internal/platform", "reconcile/snapshot", "sources", "sources/git", "sources/inventory", "sources/secrets", "sources/secrets/transit", "sources/webhook"},
		never: append([]string{"os/exec"}, clients...)},
	"internal/daemon/publicfiles": {why: "a leaf: keeps files that other services of the host read, whatever is in them",
		may: []string{"internal/fault", "internal/platform"}, never: append([]string{"os/exec", "net", "net/http"}, clients...)},
	"internal/daemon/reservations": {why: "writes what a DHCP server of the host reads; which nodes there are, it is handed",
		may: []string{"internal/daemon/publicfiles"}, never: append([]string{"os", "os/exec", "net", "net/http"}, clients...), tests: []string{"internal/fault"}},
	"internal/daemon/forwards": {why: "writes what nftables of the host reads; which nodes there are, it is handed",
		may: []string{"internal/cluster/forward", "internal/daemon/publicfiles"}, never: append([]string{"os", "os/exec", "net", "net/http"}, clients...)},
	"internal/daemon/snapshots": {why: "brings what a member of etcd sends to the store, and shows what there is; how a member is asked, and where files are, it is handed",
		may:   []string{"internal/cluster", "internal/fault", "internal/logging", "reconcile/snapshot", "reconcile/snapshot/retention"},
		never: append([]string{"os", "os/exec", "net", "net/http"}, clients...), tests: []string{"reconcile/snapshot/snapshottest", "sources/secrets"}},
	"internal/daemon/agent": {why: "here sources and reconcile meet: joins the repository with every adapter; answers for the socket, whose interface it implements, and for doctor",
		may: []string{"internal/cluster/availability", "internal/logging", "internal/api", "internal/callgate", "internal/cluster", "internal/cluster/clock", "internal/cluster/device", "internal/daemon/eventlog", "internal/daemon/follower", "internal/daemon/outbox", "internal/cluster/usage",
			"internal/daemon/reporting", "internal/daemon/reservations", "internal/daemon/snapshots", "internal/fault", "internal/history", "internal/host/doctor", "internal/host/setup", "internal/text", "internal/daemon/forwards",
			"reconcile", "reconcile/bounds", "reconcile/factory", "reconcile/helm", "reconcile/journal", "reconcile/kube", "reconcile/kube/manifests", "reconcile/machineconfig", "reconcile/plan", "reconcile/proxmox", "reconcile/rendering", "reconcile/snapshot/retention", "reconcile/talos", "reconcile/leases",
			"sources", "sources/forge", "sources/git"},
		never: append([]string{"os", "os/exec", "net/http"}, clients...), tests: []string{"internal/cluster/window", "internal/daemon/daemontest", "internal/daemon/sandbox", "internal/host/archive", "internal/worker", "reconcile/snapshot", "sources/notify", "sources/secrets", "internal/lab/talos/installer"}},
	"internal/daemon/sandbox": {why: "does in a worker what the daemon is going to do with what was pushed: reads it (inventory, secrets) and renders it (machineconfig)",
		may: []string{"internal/cluster", "internal/worker", "reconcile/machineconfig", "sources/inventory", "sources/secrets"}, never: append([]string{"os", "os/exec", "net", "net/http", "log", "log/slog"}, clients...),
		tests: []string{"internal/repo/repotest"}},
	"internal/daemon/follower": {why: "fetches the repository, whatever is in it and whoever reads it",
		may: []string{"internal/cluster", "internal/daemon/outbox", "internal/fault", "internal/logging", "sources"}, never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/golden":                {why: "for tests only, a leaf: files that what is generated is compared with"},
	"internal/host/hosttest":         {why: "for tests only, a leaf: the files of a host, and a time server"},
	"internal/repo/repotest":         {why: "for tests only, a leaf: a repository of any size"},
	"internal/worker/workertest":     {why: "for tests only: jobs without a process", may: []string{"internal/worker"}},
	"internal/yamlschema/schematest": {why: "for tests only, a leaf: schemas and YAML as an editor reads them"},
	"internal/daemon/daemontest": {why: "for tests only: an agent on the lab, wired by hand",
		may: []string{"internal/api", "internal/cluster", "internal/daemon/agent", "internal/daemon/reporting", "internal/daemon/sandbox", "internal/lab", "internal/lab/pve", "internal/lab/world",
			"reconcile/factory", "reconcile/helm", "reconcile/machineconfig", "reconcile/proxmox", "sources", "sources/forge", "sources/git", "sources/inventory", "sources/secrets", "internal/worker/workertest"},
		never: append([]string{"os/exec"}, clients...)},
	"internal/daemon/support": {why: "the client's side of a daemon that runs or does not: asks the socket, the host and the config's files, and where no daemon runs looks in its place; prints statuses as people see them",
		may:   []string{"internal/api", "internal/cluster", "internal/daemon", "internal/fault", "internal/host/config", "internal/host/doctor", "internal/host/harden", "internal/host/probe", "internal/retry", "internal/terminal", "internal/text"},
		never: append([]string{"net", "net/http", "log", "log/slog"}, clients...)},
	"internal/daemon/election": {why: "agrees with other agents on who acts, through an interface of the few steps of a store; knows neither what acting is nor where terms are kept",
		may: []string{"internal/logging", "internal/retry"}, never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/daemon/outbox": {why: "a leaf: what waits to be sent, whatever it is and whoever gets it",
		never: append([]string{"os", "net", "net/http", "log/slog"}, clients...)},
	"internal/daemon/eventlog": {why: "keeps what was reported, in files of the state directory; knows neither who reports nor who reads",
		may:   []string{"internal/cluster", "internal/cluster/clock", "internal/history", "internal/host/state", "internal/logging", "reconcile", "reconcile/journal"},
		never: append([]string{"os", "net", "net/http"}, clients...)},
	"internal/daemon/reporting": {why: "reports leave by the two rooms that send them, through the gate that counts; of git only the error is known that means an empty repository",
		may: []string{"internal/logging", "internal/callgate", "internal/cluster", "internal/daemon/outbox", "internal/fault", "internal/text", "reconcile/journal",
			"sources/forge", "sources/git", "sources/notify"}, never: append([]string{"os", "net", "net/http"}, clients...)},

	"internal/lab": {why: "joins the simulated services; must not know how the agent thinks",
		may: []string{"internal/cluster", "internal/lab/dhcp", "internal/lab/world", "internal/lab/pve", "internal/lab/talos", "internal/lab/kube", "internal/lab/factory", "internal/lab/charts", "internal/lab/gitserver", "internal/lab/forge", "internal/lab/httpservice"}},
	"internal/lab/pvehost": {why: "a lab with the files of a host: lab and pve are the lab, pvesh the host's own program",
		may: []string{"internal/lab", "internal/lab/pve", "internal/lab/pvesh"}},
	"internal/lab/pvesh": {why: "a leaf: a command that asks the simulated Proxmox VE over its API",
		never: []string{"github.com/luthermonson/go-proxmox"}},
	"internal/lab/dhcp": {why: "a leaf of the lab: who has which address, and a file of that",
		never: append([]string{"os", "os/exec", "net/http", "log", "log/slog"}, clients...)},
	"internal/lab/world": {why: "a leaf: the clock, the network and the faults that the services share"},
	"internal/lab/pve": {why: "one service, on the world; not built on the agent's own client",
		may: []string{"internal/lab/world", "internal/lab/pve/accesslog", "internal/lab/pve/copying", "internal/lab/pve/ha", "internal/lab/pve/history", "internal/lab/pve/options", "internal/lab/pve/roles", "internal/lab/pve/schema", "internal/lab/pve/serial"}, never: []string{"github.com/luthermonson/go-proxmox"}},
	"internal/lab/pve/accesslog": {why: "a leaf of the lab: lines in a file"},
	"internal/lab/pve/schema":    {why: "a leaf of the lab: what the description of the API demands of parameters, without what a method does"},
	"internal/lab/pve/options": {why: "a leaf of the lab: options of VMs as text, their privileges and when they take effect, without a VM",
		may: []string{"internal/lab/pve/schema"}},
	"internal/lab/pve/ha":      {why: "a leaf of the lab: what a manager is asked for of VMs, and its rounds, over machines that it is handed"},
	"internal/lab/pve/history": {why: "a leaf of the lab: rings of values that it is handed, without a host"},
	"internal/lab/pve/roles":   {why: "a leaf of the lab: names"},
	"internal/lab/pve/copying": {why: "a leaf of the lab: a lock and a speed that workers share, without a storage"},
	"internal/lab/pve/serial":  {why: "a leaf of the lab: a conversation over one connection"},
	"internal/lab/talos": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/talos/access", "internal/lab/talos/etcddb", "internal/lab/talos/ingress", "internal/lab/talos/installer", "internal/lab/talos/manifests", "internal/lab/talos/network", "internal/lab/talos/relay", "internal/lab/talos/reports", "internal/lab/talos/rules", "internal/lab/talos/services", "internal/lab/talos/system"}},
	"internal/lab/talos/access": {why: "who may call the API of a machine; knows no machine"},
	"internal/lab/talos/etcddb": {why: "what an etcd keeps in its file and sends as a snapshot, and the calls that do; handed its contents, it knows no fleet",
		may: []string{"internal/lab/world"}},
	"internal/lab/talos/ingress": {why: "how connections reach the API of a machine; knows no machine"},
	"internal/lab/talos/installer": {why: "how a machine gets another version: slots, installers and the calls that run them; knows no fleet",
		may: []string{"internal/lab/world", "internal/lab/talos/system"}},
	"internal/lab/talos/network": {why: "what a machine config makes of a machine's link; knows no machine",
		may: []string{"internal/lab/talos/system"}},
	"internal/lab/talos/relay": {why: "how the answers of several machines become one; knows no machine"},
	"internal/lab/talos/manifests": {why: "what a machine config makes of Kubernetes: static pods, kubelet, control plane, bootstrap manifests; knows no machine",
		may: []string{"internal/lab/kube/system", "internal/lab/world", "internal/lab/talos/system"}},
	"internal/lab/talos/rules":   {why: "what a version of Talos demands of a machine config; knows no machine"},
	"internal/lab/talos/reports": {why: "what a machine keeps another service informed of; knows neither"},
	"internal/lab/talos/services": {why: "what a service of a machine reports; knows no machine",
		may: []string{"internal/lab/talos/system", "internal/lab/world"}},
	"internal/lab/talos/system": {why: "what a machine shows of its inside, worked out from what it is handed; knows no fleet and no machine config",
		may: []string{"internal/lab/world"}, never: []string{"github.com/siderolabs/talos/pkg/machinery/config"}},
	"internal/lab/kube": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/kube/containers", "internal/lab/kube/deprecation", "internal/lab/kube/drain", "internal/lab/kube/events", "internal/lab/kube/jobs", "internal/lab/kube/openapi", "internal/lab/kube/plumbing", "internal/lab/kube/registry", "internal/lab/kube/rules", "internal/lab/kube/system"}},
	"internal/lab/kube/containers": {why: "a leaf of the lab: what a kubelet writes of containers and answers about them, without where pods are kept",
		may: []string{"internal/lab/kube/rules", "internal/retry"}},
	"internal/lab/kube/deprecation": {why: "a leaf of the lab: what a kube-apiserver does about requests for deprecated APIs, without where objects are kept"},
	"internal/lab/kube/drain":       {why: "a leaf of the lab: which pods Talos' own drain asks to go, and how long it waits, without where they are kept"},
	"internal/lab/kube/events": {why: "a leaf of the lab: what components report in events, without where they are kept",
		may: []string{"internal/lab/kube/rules"}},
	"internal/lab/kube/jobs": {why: "a leaf of the lab: what becomes of a Job by how its pods stand, without where they are kept",
		may: []string{"internal/lab/kube/rules"}},
	"internal/lab/kube/openapi":  {why: "a leaf of the lab: what OpenAPI tells of kinds that it is handed"},
	"internal/lab/kube/plumbing": {why: "a leaf of the lab: connections, a gate and a queue, whatever is served"},
	"internal/lab/kube/registry": {why: "a leaf of the lab: objects as keys and values of etcd, without where they are kept",
		may: []string{"internal/lab/kube/rules"}},
	"internal/lab/kube/system": {why: "a leaf of the lab: what Talos and Kubernetes write into a cluster by themselves, without where and when",
		may: []string{"internal/lab/world", "internal/lab/kube/rules"}},
	"internal/lab/kube/rules": {why: "a leaf of the lab: what a kube-apiserver demands of objects, without where they are kept"},
	"internal/lab/httpservice": {why: "a leaf of the lab: what its plain HTTP services share",
		may: []string{"internal/lab/world"}},
	"internal/lab/httpservice/servicetest": {why: "what the tests of those services share",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},
	"internal/lab/factory": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},
	"internal/lab/charts": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},
	"internal/lab/gitserver": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},
	"internal/lab/vault": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},
	"internal/lab/forge": {why: "one service, on the world",
		may: []string{"internal/lab/world", "internal/lab/httpservice"}},

	"examples": {why: "the example repository, which the program also carries",
		never: append([]string{"os", "net", "net/http"}, clients...)},
	"packaging/deb": {why: "files of the package that the program also carries",
		never: append([]string{"os", "net", "net/http"}, clients...)},

	"cmd/agent": {why: "the door: a file a command. Nobody imports it",
		tests: []string{"internal/cluster/availability", "internal/daemon/agent", "internal/daemon/daemontest", "internal/daemon/reporting", "internal/history", "internal/host/state", "internal/metrics", "packaging/deb", "reconcile/factory", "reconcile/helm", "reconcile/machineconfig", "reconcile/proxmox", "sources", "sources/git", "sources/notify", "sources/secrets"},
		may: []string{
			"examples",
			"internal/api",
			"internal/cluster",
			"internal/cluster/usage",
			"internal/contexts",
			"internal/daemon",
			"internal/daemon/eventlog",
			"internal/daemon/support",
			"internal/dialog",
			"internal/fault",
			"internal/host/archive",
			"internal/host/config",
			"internal/host/doctor",
			"internal/host/harden",
			"internal/host/probe",
			"internal/host/setup",
			"internal/host/setup/account",
			"internal/host/setup/wizard",
			"internal/lab",
			"internal/lab/pvehost",
			"internal/lab/pvesh",
			"internal/lab/world",
			"internal/logging",
			"internal/platform",
			"internal/repo/creation",
			"internal/repo/demo",
			"internal/repo/importing",
			"internal/repo/rehearsal",
			"internal/repo/scaffold",
			"internal/repo/sealed",
			"internal/repo/tokens",
			"internal/repo/validation",
			"internal/retry",
			"internal/terminal",
			"internal/text",
			"sources/inventory",
		}},
}

// testsMay lists what tests may import besides what their room may: adapters
// are tested against the lab over the real protocol.
var testsMay = []string{"internal/lab", "internal/lab/pvehost", "internal/lab/pvesh", "internal/lab/world", "internal/lab/pve", "internal/lab/pve/accesslog", "internal/lab/pve/history", "internal/lab/talos", "internal/lab/kube",
	"internal/lab/factory", "internal/lab/charts", "internal/lab/gitserver", "internal/lab/forge", "internal/lab/httpservice", "internal/lab/httpservice/servicetest", "internal/lab/vault", "internal/cluster", "internal/fault", "internal/retry",
	"internal/golden", "internal/host/hosttest", "internal/repo/repotest", "internal/yamlschema/schematest", "reconcile/journal/journaltest"}

// everywhere lists what every room may import, as it may import the standard library: no picture has it.
var everywhere = []string{"internal/pattern"}

func TestRoomsKeepTheImportRules(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range house(t) {
		r, ok := rooms[s.dir]
		if !ok {
			t.Errorf("%s: folder %q is not a room: give it a rule in rooms_test.go", s.path, s.dir)
			continue
		}
		seen[s.dir] = true
		for _, imp := range s.file.Imports {
			name, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			checkImport(t, s, r, name)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(rooms)) {
		if !seen[dir] && dir != "" {
			t.Errorf("rooms_test.go has a rule for %q, which holds no Go files", dir)
		}
		if rooms[dir].why == "" {
			t.Errorf("rooms_test.go does not give the reason of the rule for %q", dir)
		}
		if slices.Contains(rooms[dir].may, "*") {
			t.Errorf("rooms_test.go lets %q import everything: list it", dir)
		}
	}
}

func checkImport(t *testing.T, s source, r room, name string) {
	t.Helper()
	if ours, ok := strings.CutPrefix(name, module); ok {
		if ours == "cmd/agent" {
			t.Errorf("%s imports cmd/agent: the wiring is imported by nobody", s.path)
			return
		}
		if ours == s.dir || slices.Contains(everywhere, ours) || slices.Contains(r.may, ours) || s.test && (slices.Contains(testsMay, ours) || slices.Contains(r.tests, ours)) {
			return
		}
		t.Errorf("%s: room %q may not import %q", s.path, s.dir, ours)
		return
	}
	if s.test {
		return
	}
	for _, n := range r.never {
		if name == n || strings.HasPrefix(name, n+"/") {
			// "net" forbids the package, not net/netip and net/url, which are pure.
			if n == "net" && (name == "net/netip" || name == "net/url") {
				continue
			}
			t.Errorf("%s: room %q must never import %q", s.path, s.dir, name)
		}
	}
}

// TestPlanIsPure keeps the clock and chance out of the planner: they would make
// the same input give another plan.
func TestPlanIsPure(t *testing.T) {
	files, err := filepath.Glob("reconcile/plan/*.go")
	if err != nil {
		t.Fatal(err)
	}
	drifts, err := filepath.Glob("reconcile/drift/*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, drifts...)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After"} {
			if strings.Contains(string(src), bad) {
				t.Errorf("%s uses %s: now is a field of Observed", file, bad)
			}
		}
	}
}
