package talos_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// Events in the recordings are {type, actorId, event}: their type, whether they name the call that
// caused them, and their payload.

// recordEvent writes an event of the lab so.
func (r *replay) recordEvent(m proto.Message) any {
	e := m.(*machineapi.Event)
	kind := e.GetData().GetTypeUrl()
	name := kind[strings.LastIndexByte(kind, '/')+1:]
	if name == "" {
		return map[string]any{"type": ""}
	}
	found, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name))
	if err != nil {
		r.t.Error(err)
		return nil
	}
	payload := found.New().Interface()
	if err := proto.Unmarshal(e.GetData().GetValue(), payload); err != nil {
		r.t.Error(err)
	}
	data, err := protojson.Marshal(payload)
	if err != nil {
		r.t.Error(err)
	}
	var event any
	if err := json.Unmarshal(data, &event); err != nil {
		r.t.Error(err)
	}
	return map[string]any{"type": name[strings.LastIndexByte(name, '.')+1:], "actorId": e.GetActorId() != "", "event": event}
}

// serviceOf is the service in the line of an event.
func serviceOf(line any) string {
	_, after, _ := strings.Cut(fmt.Sprint(line), `"service":`)
	return after
}

// onDisksOnly are the phases and tasks that a container does not have.
var onDisksOnly = regexp.MustCompile(`(?i)unmount|volumeFinalize|teardown|meta|kexec`)

// cutOutput leaves of what an installer prints only that it does: the recorded one was a stand-in
// that printed its arguments.
func cutOutput(messages []any) (left []any) {
	printed := false
	for _, m := range messages {
		progress, _ := m.(map[string]any)["progress"].(map[string]any)
		if _, text := progress["message"]; !text {
			left = append(left, m)
		} else if !printed {
			printed = true
			left = append(left, "output")
		}
	}
	return left
}

// sortEvents puts the events of a stream in order by what reports them, in lines: the steps of
// sequences, the status of the machine, each service. What comes first of two that come from
// different parts of Talos at the same moment is chance. So are what is left out.
func sortEvents(messages []any) []any {
	var refused, steps, status, services []any
	for _, m := range messages {
		e, _ := m.(map[string]any)
		payload, _ := e["event"].(map[string]any)
		message, _ := payload["message"].(string)
		forget(payload, "lastChange")
		text, _ := json.Marshal(payload)
		line := fmt.Sprintf("%v %v %s", e["type"], e["actorId"], normalText(string(text)))
		if name := fmt.Sprint(payload["phase"], payload["task"]); onDisksOnly.MatchString(name) {
			continue
		}
		switch e["type"] {
		case "ServiceStateEvent":
			if strings.HasPrefix(message, "Failed to remove cgroup") || payload["service"] == "apid" {
				// Of the recorded machine's cgroups; and whether apid still reports of its own end.
				continue
			}
			services = append(services, line)
		case "MachineStatusEvent":
			status = append(status, line)
		case "SequenceEvent":
			if strings.Contains(line, "LOCKED") {
				refused = append(refused, line) // when a caller asks again
				continue
			}
			steps = append(steps, line)
		default:
			steps = append(steps, line)
		}
	}
	byService := func(a, b any) int { return strings.Compare(serviceOf(a), serviceOf(b)) }
	slices.SortStableFunc(services, byService)
	return slices.Concat(steps, refused, status, services)
}
