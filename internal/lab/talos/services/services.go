package services

import (
	"fmt"
	"slices"
	"time"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/talos-agent/talos-agent/internal/lab/talos/system"
)

// Watcher is notified of services: of what became of one, to show it, and of each event.
type Watcher interface {
	WriteService(*Service)
	PublishService(s *Service, msg string)
}

// New makes a service of which nothing is known yet.
func New(id string, w Watcher) *Service { return &Service{ID: id, Unknown: true, watcher: w} }

// Service is one service of Talos as ServiceList shows it. The texts of the
// events are recorded ones.
type Service struct {
	ID      string
	State   string // Starting, Waiting, Preparing, Running, Stopping, Finished, Failed
	events  []*machineapi.ServiceEvent
	Unknown bool // nobody has looked at its health yet
	Healthy bool
	message string // of the last health check
	changed time.Time
	ran     bool   // it has run, so that its health is known while it does not
	Starts  int    // of the kubelet
	Image   string // of the kubelet that was started
	Args    string // and what it was started with
	watcher Watcher
}

const (
	checkPassed = "Health check successful"
	// NewRunner is the event of a service that is about to run.
	NewRunner  = "Creating service runner"
	notRunning = "service not running"
	keptEvents = 64 // of a service
)

// MoveTo moves the service to a state. The health of one that ran is unknown in the event,
// and known where it is listed, until it is about to run again (recorded).
func (s *Service) MoveTo(state, msg string) {
	if state != s.State {
		s.ran = s.ran || s.State == "Running"
		s.Unknown, s.Healthy, s.message, s.changed = true, false, "", time.Time{}
	}
	s.State = state
	s.Record(msg)
	if s.ran && state != "Running" && msg != NewRunner {
		s.Unknown, s.message, s.changed = false, notRunning, time.Now()
	}
	s.watcher.WriteService(s)
}

// Record adds an event to those of the service, which keeps the last ones, and to those of
// the machine.
func (s *Service) Record(msg string) {
	s.events = append(s.events, &machineapi.ServiceEvent{Msg: msg, State: s.State, Ts: timestamppb.Now()})
	s.events = s.events[max(len(s.events)-keptEvents, 0):]
	s.watcher.PublishService(s, msg)
}

// Resume is the process of a service that ended by itself and runs once more: its health was
// not looked at meanwhile.
func (s *Service) Resume(msg string) {
	s.State = "Running"
	s.Record(msg)
	s.watcher.WriteService(s)
}

// RunProcess starts the service's process; its health is unknown at first.
func (s *Service) RunProcess(msg string) {
	s.MoveTo("Running", msg)
	s.message, s.changed = "Unknown", time.Now()
	s.watcher.WriteService(s)
}

// PassHealth and FailHealth are the results of health checks.
func (s *Service) PassHealth() {
	if s.State == "Running" && !s.Healthy {
		s.setHealth(true, "", checkPassed)
	}
}

func (s *Service) FailHealth(reason string) {
	if s.State == "Running" && (s.Unknown || s.Healthy) {
		s.setHealth(false, reason, "Health check failed: "+reason)
	}
}

func (s *Service) setHealth(healthy bool, message, event string) {
	s.Unknown, s.Healthy, s.message, s.changed = false, healthy, message, time.Now()
	s.Record(event)
	s.watcher.WriteService(s)
}

// HasEnded reports whether the service neither runs nor is about to.
func (s *Service) HasEnded() bool { return s.State == "Finished" || s.State == "Failed" }

// Goodbye is the event of a service that is stopped.
func (s *Service) Goodbye() string {
	if s.ID == "cri" {
		return "Sending SIGTERM to " + system.CRIProcess
	}
	return fmt.Sprintf("Sending SIGTERM to task %s (PID %d, container %s)", s.ID, s.PID(), s.ID)
}

// Info is the service as the API shows it.
func (s *Service) Info() *machineapi.ServiceInfo {
	health := &machineapi.ServiceHealth{Unknown: s.Unknown, Healthy: s.Healthy, LastMessage: s.message}
	if !s.changed.IsZero() {
		health.LastChange = timestamppb.New(s.changed)
	} else {
		health.LastChange = timestamppb.New(time.Time{})
	}
	return &machineapi.ServiceInfo{Id: s.ID, State: s.State, Health: health, Events: &machineapi.ServiceEvents{Events: slices.Clone(s.events)}}
}

// LaunchProcess takes the service from nothing to running.
func (s *Service) LaunchProcess(process string, waits ...string) {
	s.MoveTo("Starting", "Starting service")
	for _, w := range waits {
		s.MoveTo("Waiting", w)
	}
	s.MoveTo("Preparing", "Running pre state")
	s.MoveTo("Preparing", NewRunner)
	s.RunProcess(process)
}

// PID is the process of a kubelet, which each start makes another, or of an extension.
func (s *Service) PID() int {
	if s.ID != "kubelet" {
		return 400
	}
	return 239 + 90*(s.Starts-1)
}
