package system

import (
	"context"
	"fmt"
	"time"

	timeapi "github.com/siderolabs/talos/pkg/machinery/api/time"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// TimeService is time.TimeService: it compares the machine's clock with that of a
// time server, which in the lab is right.
type TimeService struct {
	timeapi.UnimplementedTimeServiceServer
	Machine Machine
}

// Time asks the first time server of the machine config.
func (s *TimeService) Time(ctx context.Context, _ *emptypb.Empty) (*timeapi.TimeResponse, error) {
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	return s.TimeCheck(ctx, &timeapi.TimeRequest{Server: now.TimeServer})
}

// TimeCheck asks a time server; one that does not answer is waited for five seconds.
func (s *TimeService) TimeCheck(ctx context.Context, in *timeapi.TimeRequest) (*timeapi.TimeResponse, error) {
	if in.GetServer() == "" {
		return nil, status.Error(codes.InvalidArgument, "ntp server is required")
	}
	now, err := s.Machine.Look()
	if err != nil {
		return nil, err
	}
	if now.Timeless {
		if err := s.Machine.Wait(ctx, 5*time.Second); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		return nil, fmt.Errorf("error querying NTP server %q: lookup %s: i/o timeout", in.GetServer(), in.GetServer())
	}
	return &timeapi.TimeResponse{Messages: []*timeapi.Time{{Server: in.GetServer(), Localtime: timestamppb.New(now.Now), Remotetime: timestamppb.New(now.Now)}}}, nil
}
