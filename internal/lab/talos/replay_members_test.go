package talos_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// memberNames names members of etcd by their node and by how often that has joined: their ids
// follow from addresses and times, and so does their order in a list.
type memberNames struct {
	mu    sync.Mutex
	names map[string]string // by id
	ids   map[string]string // by name
	count map[string]int    // by peer address
}

func newMemberNames() *memberNames {
	return &memberNames{names: map[string]string{}, ids: map[string]string{}, count: map[string]int{}}
}

// learn reads the member lists in an answer.
func (n *memberNames) learn(v any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, m := range membersIn(v) {
		id, _ := m["id"].(string)
		if n.names[id] != "" {
			continue
		}
		peer := fmt.Sprint(m["peerUrls"])
		n.count[peer]++
		name := fmt.Sprintf("member %d at %s", n.count[peer], peer)
		n.names[id], n.ids[name] = name, id
	}
}

// rename puts names in the place of ids.
func (n *memberNames) rename(s string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, name := range n.names {
		s = strings.ReplaceAll(s, id, name)
	}
	return s
}

// idOf is the id of a member that others know by another one.
func (n *memberNames) idOf(theirs *memberNames, id string) string {
	if ours := n.ids[theirs.rename(id)]; ours != "" {
		return ours
	}
	return id
}

// renameAnswer does so in an answer, and puts the members in the order of their addresses.
func (n *memberNames) renameAnswer(a answer) answer {
	a.Message = n.rename(a.Message)
	a.Response = n.renameValue(a.Response)
	for i, m := range a.Messages {
		a.Messages[i] = n.renameValue(m)
	}
	resp, _ := a.Response.(map[string]any)
	messages, _ := resp["messages"].([]any)
	for _, m := range messages {
		m, _ := m.(map[string]any)
		byPeer := func(a, b any) int { return strings.Compare(fmt.Sprint(peersOf(a)), fmt.Sprint(peersOf(b))) }
		if list, ok := m["members"].([]any); ok {
			slices.SortFunc(list, byPeer)
		}
		if list, ok := m["legacyMembers"].([]any); ok {
			slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		}
	}
	return a
}

func peersOf(member any) any {
	m, _ := member.(map[string]any)
	return m["peerUrls"]
}

func (n *memberNames) renameValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = n.renameValue(e)
		}
	case []any:
		for i, e := range v {
			v[i] = n.renameValue(e)
		}
	case string:
		return n.rename(v)
	}
	return v
}

// membersIn finds the members of the lists in an answer.
func membersIn(v any) (members []map[string]any) {
	switch v := v.(type) {
	case map[string]any:
		if list, ok := v["members"].([]any); ok {
			for _, m := range list {
				if m, ok := m.(map[string]any); ok {
					members = append(members, m)
				}
			}
		}
		for _, e := range v {
			members = append(members, membersIn(e)...)
		}
	case []any:
		for _, e := range v {
			members = append(members, membersIn(e)...)
		}
	}
	return members
}
