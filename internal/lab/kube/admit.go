package kube

import (
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/talos-agent/talos-agent/internal/lab/kube/rules"
)

// admitObject completes an object with the defaults and allocations of the server
// and refuses what the server would refuse. was is the version before, nil for
// a new object.
func (s *store) admitObject(res *resource, body, was map[string]any) error {
	rules.SetDefaults(res.gr(), body)
	name := rules.TextAt(body, "metadata", "name")
	errs := rules.CheckObject(res.gr(), body, was)
	if res == resServices && len(errs) == 0 {
		errs = s.allocateService(body, was)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(res.gk(), name, errs)
	}
	if res == resPods && was == nil {
		return s.securePod(body)
	}
	return nil
}

// securePod refuses a pod that its namespace does not allow.
func (s *store) securePod(pod map[string]any) error {
	return s.security.Refuse(s.labelsOf(rules.TextAt(pod, "metadata", "namespace")), pod)
}

// labelsOf are the labels of a namespace.
func (s *store) labelsOf(namespace string) map[string]string {
	if space := s.getObject(resNamespaces, objectKey("", namespace)); space != nil {
		return rules.StringsAt(space.body, "metadata", "labels")
	}
	return nil
}

// allocateService gives a service its address and node ports.
func (s *store) allocateService(body, was map[string]any) field.ErrorList {
	spec := rules.MapAt(body, "spec")
	kind, ip := rules.TextAt(spec, "type"), rules.TextAt(spec, "clusterIP")
	if kind == "ExternalName" {
		return nil
	}
	had := rules.TextAt(was, "spec", "clusterIP")
	switch {
	case had != "" && ip == "":
		ip = had
	case had != "" && ip != had:
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs").Index(0), []string{ip}, "may not change once set")}
	case ip == "":
		if ip = s.freeServiceIP(); ip == "" {
			return field.ErrorList{field.InternalError(field.NewPath("spec", "clusterIPs"), errors.New("failed to allocate a serviceIP: range is full"))}
		}
	case ip != "None" && had == "" && !s.inServices(ip):
		return field.ErrorList{field.Invalid(field.NewPath("spec", "clusterIPs"), []string{ip},
			fmt.Sprintf("failed to allocate IP %s: the provided network does not match the current range", ip))}
	}
	spec["clusterIP"], spec["clusterIPs"] = ip, []any{ip}
	if kind == "NodePort" || kind == "LoadBalancer" {
		for _, p := range rules.MapsAt(spec, "ports") {
			if rules.NumberAt(p, "nodePort") == 0 {
				p["nodePort"] = 30000 + int64(s.serial.Add(1))%2768
			}
		}
		rules.FillMissing(spec, "externalTrafficPolicy", "Cluster")
	}
	if kind == "LoadBalancer" {
		rules.FillMissing(spec, "allocateLoadBalancerNodePorts", true)
	}
	return nil
}

func (s *store) inServices(ip string) bool {
	addr, err := netip.ParseAddr(ip)
	return err == nil && s.services.Contains(addr)
}

// freeServiceIP returns an address no service has, "" if there is none. The
// first ones of the range, which clusters give out by hand (DNS is the tenth),
// come last, as in life.
func (s *store) freeServiceIP() string {
	taken := map[string]bool{}
	services, _ := s.listObjects(resServices, "")
	for _, o := range services {
		taken[rules.TextAt(o.body, "spec", "clusterIP")] = true
	}
	for _, part := range [2][2]int{{256, 1 << 16}, {1, 256}} {
		for n := part[0]; n < part[1]; n++ {
			ip := rules.NthAddr(s.services, n)
			if !ip.IsValid() || !s.services.Contains(ip) {
				break
			}
			if !taken[ip.String()] {
				return ip.String()
			}
		}
	}
	return ""
}
