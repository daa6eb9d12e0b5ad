package election

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// Term is one term of a leader.
type Term struct {
	Number int
	Note   Note
}

// Note is what the leader of a term writes into it.
type Note struct {
	Host string `json:"host"` // for people
	// State identifies the state directory of the agent, and Run the process.
	State string `json:"state"`
	Run   string `json:"run"`
	Beat  int    `json:"beat,omitempty"` // how often it was renewed
	// Lease is how long the agent acts after a renewal.
	Lease time.Duration `json:"lease"`
	// Before is the longest lease of the agents of earlier terms, which may act still while this one waits.
	Before time.Duration `json:"before,omitempty"`
	// Led is the State of the agent that led last, which is not this one before it does.
	Led string `json:"led,omitempty"`
	// Ended: whoever led in this term has stopped to act, for good.
	Ended bool `json:"ended,omitempty"`
	// Suspended are the clusters of which a next leader must change nothing until a person lets it: whoever has suspended one, or has it
	// destroyed, has asked this agent only.
	Suspended []string `json:"suspended,omitempty"`
}

// Encode returns a note as text.
func (n Note) Encode() string {
	raw, err := json.Marshal(n)
	if err != nil {
		return "" // texts, numbers and a list of texts are always encoded
	}
	return string(raw)
}

// DecodeNote reads what Encode has written. What it cannot read is a note without a holder, which changes only with its text.
func DecodeNote(text string) Note {
	var n Note
	if json.Unmarshal([]byte(text), &n) != nil {
		return Note{Host: "an unknown agent", Run: text}
	}
	return n
}

// equal reports whether two notes are the same.
func (n Note) equal(other Note) bool { return n.Encode() == other.Encode() }

// Terms is where the terms are. What is made, written or removed without an error must be so for every agent that makes, writes or
// removes something afterwards; a host that cannot know what others have done must fail to. What it lists may be old there.
type Terms interface {
	// List returns the terms that there are, in any order.
	List(ctx context.Context) ([]Term, error)
	// Create makes a term, and fails with ErrTaken where it is there. After another error it may be there.
	Create(ctx context.Context, t Term) error
	// Write replaces the note of a term, and fails with ErrRemoved where that is not there.
	Write(ctx context.Context, t Term) error
	// Remove removes a term; it may not be there.
	Remove(ctx context.Context, number int) error
}

var (
	// ErrTaken is that a term exists.
	ErrTaken = errors.New("the term exists")
	// ErrRemoved is that a term does not exist.
	ErrRemoved = errors.New("the term does not exist")
)

// newest is the newest of some terms, zero where there is none.
func newest(terms []Term) (last Term) {
	for _, t := range terms {
		if t.Number > last.Number {
			last = t
		}
	}
	return last
}
