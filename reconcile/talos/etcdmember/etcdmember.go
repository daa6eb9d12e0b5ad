// Package etcdmember asks the etcd of one control plane about itself: who its members are, who leads it and
// which alarms it has.
//
// It is handed the connection, and proves nothing about who is at its other end.
package etcdmember

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/talos-agent/talos-agent/internal/cluster"
	"github.com/talos-agent/talos-agent/internal/text"
)

// Within bounds one question: asked of a machine whose etcd cannot answer, the call hangs until its
// caller gives up (recorded).
const Within = 3 * time.Second

// maxName is how much of a name is taken over, in bytes.
const maxName = 600

// List asks for the members, of the machine's own etcd: without that, a machine answers with whichever
// etcd of its cluster it reaches, at random where there are two (recorded). A learner cannot answer.
func List(ctx context.Context, machine machineapi.MachineServiceClient) ([]cluster.Member, error) {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	resp, err := machine.EtcdMemberList(ctx, &machineapi.EtcdMemberListRequest{QueryLocal: true})
	if err != nil {
		return nil, err
	}
	var out []cluster.Member
	for _, msg := range resp.GetMessages() {
		for _, m := range msg.GetMembers() {
			out = append(out, cluster.Member{ID: m.GetId(), Name: text.Sanitize(m.GetHostname(), maxName), Address: peerAddress(m.GetPeerUrls()), Learner: m.GetIsLearner()})
		}
	}
	return out, nil
}

// peerAddress is the address in a member's peer URLs, "" when there is none.
func peerAddress(urls []string) string {
	for _, s := range urls {
		u, err := url.Parse(s)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			return a.String()
		}
	}
	return ""
}

// Find finds a node among the members.
func Find(members []cluster.Member, n cluster.Node) (cluster.Member, bool) {
	i := slices.IndexFunc(members, func(m cluster.Member) bool { return m.IsOf(n) })
	if i < 0 {
		return cluster.Member{}, false
	}
	return members[i], true
}

// Has reports whether a node is among the members.
func Has(members []cluster.Member, n cluster.Node) bool {
	_, ok := Find(members, n)
	return ok
}

// Status is the machine's own member.
type Status struct {
	ID      uint64
	Leader  uint64 // the member that it follows; 0: none
	Learner bool
	Server  string // the version of etcd that it runs: 3.6.12
	Alarms  []string
}

// ReadStatus asks for the machine's own member. It needs no quorum. Where etcd does not run it hangs (recorded).
func ReadStatus(ctx context.Context, machine machineapi.MachineServiceClient) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, Within)
	defer cancel()
	resp, err := machine.EtcdStatus(ctx, &emptypb.Empty{})
	switch {
	case err != nil:
		return Status{}, err
	case len(resp.GetMessages()) == 0:
		return Status{}, errors.New("the answer is empty")
	}
	st := resp.GetMessages()[0].GetMemberStatus()
	return Status{ID: st.GetMemberId(), Leader: st.GetLeader(), Learner: st.GetIsLearner(), Server: text.Sanitize(st.GetProtocolVersion(), maxName), Alarms: alarmsIn(st.GetErrors())}, nil
}

// Summarize returns what is the same of so many members, from what some answered, each or its error: the first that answered
// counts, and of the versions the oldest, which is not known while it is not of all.
func Summarize(members int, found []Status, errs []error) cluster.Seen[cluster.Etcd] {
	out := cluster.Unseen[cluster.Etcd]("no member was asked")
	known, oldest := 0, ""
	for i, st := range found {
		switch {
		case errs[i] != nil && out.Known:
			continue
		case errs[i] != nil:
			out.Why = errs[i].Error()
			continue
		case !out.Known:
			out = cluster.Saw(cluster.Etcd{Leader: st.Leader, Alarms: st.Alarms})
		}
		if known++; known == 1 || isOlder(st.Server, oldest) {
			oldest = st.Server
		}
	}
	if out.Known && known >= members {
		out.Value.Server = oldest
	}
	return out
}

// isOlder compares two versions of etcd (3.6.12); one that cannot be read is older than any.
func isOlder(a, b string) bool {
	read := func(v string) (n [3]int) {
		if _, err := fmt.Sscanf(v, "%d.%d.%d", &n[0], &n[1], &n[2]); err != nil {
			return [3]int{}
		}
		return n
	}
	x, y := read(a), read(b)
	return slices.Compare(x[:], y[:]) < 0
}

// alarmsIn are the alarms among what a member has as its errors, each kind once: "memberID:9880414841965796001 alarm:NOSPACE ".
// etcd holds them in its log, so that each member has those of all.
// Source: etcd v3.6.12, maintenanceServer.Status, and the text form of etcdserverpb.AlarmMember.
func alarmsIn(errs []string) []string {
	var out []string
	for _, e := range errs {
		for _, word := range strings.Fields(e) {
			if kind, ok := strings.CutPrefix(word, "alarm:"); ok {
				out = append(out, text.Sanitize(kind, maxName))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// RankAsSender is how late a member is asked for a snapshot: after those that follow a leader, that leader, which has
// enough to do; then a learner, which may lack much; and last one without a leader, which does not reach the others and
// may lack what they have.
func (s Status) RankAsSender() int {
	switch {
	case s.Leader == 0:
		return 3
	case s.Learner:
		return 2
	case s.Leader == s.ID:
		return 1
	}
	return 0
}
