package election

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/talos-agent/talos-agent/internal/logging"
)

// lead has this agent lead in a term as long as it can write into it.
func (e *Elector) lead(ctx context.Context, own Term) {
	led, suspended := own.Note.Led, own.Note.Suspended
	own.Note.Before = 0 // they have stopped
	sent := time.Now()
	if taken, ok := e.renew(ctx, &own); !ok || !taken {
		return
	}
	acting, stop := context.WithCancel(ctx)
	defer stop()
	until := time.AfterFunc(time.Until(sent.Add(e.c.Lease)), stop)
	defer until.Stop()
	lease := Lease{Done: acting.Done(), Number: own.Number, Led: led, Suspended: suspended, taken: make(chan chan<- error), ended: make(chan struct{}), once: new(sync.Once)}
	select {
	case e.leases <- lease:
	case <-acting.Done():
		return
	}
	e.set(State{Leads: true, Leader: e.c.Host, Number: own.Number})
	e.keep(acting, &own, lease.taken, until)
	stop()
	e.set(State{Leader: e.c.Host, Number: own.Number, Why: "this agent stops to act"})
	<-lease.ended
	e.end(context.WithoutCancel(ctx), own)
}

// keep writes into a term until it is over. What is in its note of the leader before stays there until the lease was taken.
func (e *Elector) keep(acting context.Context, own *Term, lease <-chan chan<- error, until *time.Timer) {
	tick := time.NewTicker(e.pause())
	defer tick.Stop()
	for {
		var answer chan<- error
		select {
		case <-acting.Done():
			return
		case <-tick.C:
		case answer = <-lease:
			own.Note.Led = e.c.State
		}
		if own.Note.Led == e.c.State {
			own.Note.Suspended = e.c.Suspended()
		}
		sent := time.Now()
		taken, ok := e.renew(acting, own)
		if answer != nil && (!taken || !ok) {
			answer <- errors.New("it could not be noted that this agent leads")
			return
		}
		if !ok {
			return
		}
		// Where the time is over already, the agent is stopped, and stays so.
		if taken && until.Stop() {
			until.Reset(time.Until(sent.Add(e.c.Lease)))
		}
		if answer != nil {
			answer <- acting.Err()
		}
	}
}

// renew writes into a term that this agent acts. taken is whether that is known to have been taken, ok whether the term may still be the
// newest.
func (e *Elector) renew(ctx context.Context, own *Term) (taken, ok bool) {
	within, cancel := context.WithTimeout(ctx, e.pause())
	defer cancel()
	own.Note.Beat++
	switch err := e.c.Terms.Write(within, *own); {
	case errors.Is(err, ErrRemoved):
		return false, false
	case err != nil:
		if ctx.Err() == nil {
			e.c.Log.Warn("cannot write that this agent leads", logging.Err, err)
		}
		return false, true
	}
	// An agent that has made the next term has not removed this one yet; to stop now saves it the time.
	terms, err := e.c.Terms.List(within)
	return true, err != nil || e.isOwn(newest(terms))
}

// end notes that this agent has stopped to act, so that the next one need not wait. Where that fails, it waits.
func (e *Elector) end(ctx context.Context, own Term) {
	within, cancel := context.WithTimeout(ctx, e.pause())
	defer cancel()
	own.Note.Beat++
	if own.Note.Ended = true; own.Note.Led == e.c.State {
		own.Note.Suspended = e.c.Suspended()
	}
	if err := e.c.Terms.Write(within, own); err != nil && !errors.Is(err, ErrRemoved) {
		e.c.Log.Info("cannot note that this agent leads no more; the next one waits until that is sure", logging.Err, err)
	}
}
