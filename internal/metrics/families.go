package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Family is one metric there is, for its reference.
type Family struct {
	Name   string
	Type   string // gauge, counter or histogram
	Labels []string
	Help   string
}

// prefix begins the name of every family.
const prefix = "talos_agent_"

// The families.
var (
	buildInfo = newGauge("build_info", "Always 1; the labels say which program runs.", "version", "goversion")

	condition      = newGauge("cluster_condition", "1 for the condition that the cluster is in, 0 for the others.", "cluster", "condition")
	conditionSince = newGauge("cluster_condition_since_timestamp_seconds", "Since when the cluster is in its condition. While it is Stalled: since when it is stuck.", "cluster")
	suspended      = newGauge("cluster_suspended", "1 while the cluster is suspended, so that nothing is changed.", "cluster")
	inForce        = newGauge("cluster_revision_in_force", "1 when the newest revision that was seen is the one that the cluster is made to match; 0 while it is refused or invalid.", "cluster")
	lastPass       = newGauge("cluster_last_pass_timestamp_seconds", "When the last pass ended. A quiet cluster is looked at every interval.", "cluster")
	nextPass       = newGauge("cluster_next_pass_timestamp_seconds", "When the next pass begins at the latest. A time that is minutes in the past means that the loop does not run any more.", "cluster")
	lastReady      = newGauge("cluster_last_ready_timestamp_seconds", "When the cluster was last seen Ready; missing until it was.", "cluster")
	reason         = newGauge("cluster_condition_reason", "1 for the reason of the condition that the cluster is in; see the reference of reasons.", "cluster", "reason")
	waits          = newGauge("cluster_waits", "How many waits there are, by reason; missing: none.", "cluster", "reason")
	blocks         = newGauge("cluster_blocks", "How many blocks there are, by reason; missing: none.", "cluster", "reason")
	drift          = newGauge("cluster_drift", "What keeps the cluster from matching its inventory, by kind: actions under way, waits and blocks. All are 0 when it matches.", "cluster", "kind")
	overdue        = newGauge("cluster_waits_overdue", "How many waits have taken longer than they may reasonably take.", "cluster")
	oldestWait     = newGauge("cluster_oldest_wait_timestamp_seconds", "Since when the oldest wait lasts; missing when nothing is waited for.", "cluster")
	nodes          = newGauge("cluster_nodes", "How many nodes of the inventory are in a phase.", "cluster", "phase")
	addons         = newGauge("cluster_addons", "How many addons are in a state; what Helm calls pending or otherwise is other.", "cluster", "state")
	problems       = newGauge("cluster_inventory_problems", "How many problems the newest inventory has, by severity; a VM on another host than it says is a warning.", "cluster", "severity")

	snapshotNewest   = newGauge("cluster_etcd_snapshot_newest_timestamp_seconds", "When the newest snapshot of etcd was taken that is not known to be damaged; missing: there is none, or it cannot be seen.", "cluster")
	snapshotVerified = newGauge("cluster_etcd_snapshot_verified_timestamp_seconds", "When the newest snapshot of etcd was taken that this process has read to its end; missing: there is none, or it is not read yet since the agent started.", "cluster")
	snapshotDue      = newGauge("cluster_etcd_snapshot_due_timestamp_seconds", "When the next snapshot of etcd is due.", "cluster")
	snapshotsKept    = newGauge("cluster_etcd_snapshots", "How many snapshots of etcd are kept; missing where none are taken, as all about them.", "cluster")
	snapshotsDamaged = newGauge("cluster_etcd_snapshots_damaged", "How many snapshots of etcd are known to be damaged, of those that are kept.", "cluster")
	snapshotBytes    = newGauge("cluster_etcd_snapshot_size_bytes", "The size of the newest snapshot of etcd.", "cluster")
	snapshotFails    = newGauge("cluster_etcd_snapshot_failed", "1 while the last attempt to take a snapshot of etcd has failed, or they cannot be seen.", "cluster")

	upgradeHops  = newGauge("cluster_upgrade_hops", "How many versions are left on the way to those of the inventory; 0 when the cluster has them, or when there is no way to them.", "cluster")
	upgradeStuck = newGauge("cluster_upgrade_stuck_since_timestamp_seconds", "Since when an upgrade does not go on because the cluster is Stalled; missing while it does, is held by a switch, or there is none.", "cluster")

	notBefore = newGauge("certificate_not_before_timestamp_seconds", "When the validity of a certificate began. The label cluster is empty for the certificate of Proxmox VE.", "cluster", "certificate")
	notAfter  = newGauge("certificate_not_after_timestamp_seconds", "When a certificate runs out. The label cluster is empty for the certificate of Proxmox VE.", "cluster", "certificate")

	calls = newCounter("api_calls_total", "Calls to another system, by outcome: ok, refused (it would not), failed (it could not) or lost (there was no answer).", "system", "outcome")

	passDuration = Family{prefix + "pass_duration_seconds", "histogram", []string{"cluster"}, "How long passes took."}
	actions      = newCounter("actions_total", "Actions that ended, by kind and result: done, failed, or interrupted by the end of the agent.", "cluster", "action", "result")

	reloaded      = newGauge("config_last_reload_successful", "1 when the config, the policy and the files that they name are in force as they are, 0 while a changed one cannot be loaded.")
	reloadedAt    = newGauge("config_last_reload_success_timestamp_seconds", "When the config, the policy and the files that they name were last loaded.")
	notifications = newCounter("notifications_total", "Attempts to send a notification, by target and result: sent or failed.", "target", "result")
	webhooks      = newCounter("webhook_requests_total", "Requests to the webhook listener, by result: accepted, ignored (another event, branch or repository), refused (no valid signature) or invalid.", "result")
)

// Families lists every family, in the order of the reference.
func Families() []Family {
	return []Family{
		condition, reason, conditionSince, lastReady, lastPass, nextPass, drift, waits, blocks, oldestWait, overdue, inForce, suspended, nodes, addons, problems,
		snapshotNewest, snapshotVerified, snapshotDue, snapshotsKept, snapshotsDamaged, snapshotBytes, snapshotFails,
		upgradeHops, upgradeStuck,
		passDuration, actions, calls, notBefore, notAfter,
		reloaded, reloadedAt, notifications, webhooks, buildInfo,
	}
}

func newGauge(name, help string, labels ...string) Family {
	return Family{prefix + name, "gauge", labels, help}
}

func newCounter(name, help string, labels ...string) Family {
	return Family{prefix + name, "counter", labels, help}
}

func (f Family) desc() *prometheus.Desc { return prometheus.NewDesc(f.Name, f.Help, f.Labels, nil) }

func (f Family) counter() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Name, Help: f.Help}, f.Labels)
}

// sample is one value of a family that is not counted here.
func (f Family) sample(v float64, labels ...string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(f.Name, "_total") {
		kind = prometheus.CounterValue
	}
	return prometheus.MustNewConstMetric(f.desc(), kind, v, labels...)
}
