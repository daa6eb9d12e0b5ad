package rules

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Impersonate is whom the headers of a request want to be, "kubectl --as", which is who
// sends it where they name nobody. Only who may do everything may be another.
// Source: kubernetes v1.35, apiserver/pkg/endpoints/filters/impersonation.
func Impersonate(header http.Header, user string, groups []string) (string, []string, error) {
	name, as := header.Get(authenticationv1.ImpersonateUserHeader), slices.Clone(header.Values(authenticationv1.ImpersonateGroupHeader))
	switch {
	case name == "" && len(as) > 0:
		return "", nil, apierrors.NewInternalError(fmt.Errorf("requested %v without impersonating a user", as))
	case name == "":
		return user, groups, nil
	}
	resource, called, where := "users", name, "at the cluster scope"
	if account, ok := strings.CutPrefix(name, "system:serviceaccount:"); ok {
		namespace, short, _ := strings.Cut(account, ":")
		resource, called, where = "serviceaccounts", short, fmt.Sprintf("in the namespace %q", namespace)
		if len(as) == 0 {
			as = []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace}
		}
	}
	if !MayAll(groups) {
		return "", nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, called,
			fmt.Errorf("User %q cannot impersonate resource %q in API group \"\" %s", user, resource, where)) //nolint:staticcheck // as the server writes it
	}
	if name != "system:anonymous" && !slices.Contains(as, "system:authenticated") {
		as = append(as, "system:authenticated")
	}
	return name, as, nil
}
