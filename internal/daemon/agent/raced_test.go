package agent_test

// raced are the tests that are run with the race detector in continuous integration, where it
// takes five times as long: what starts, ends and meets in an agent, and of crashes and seeds
// a part. The others make the same goroutines meet, over other worlds; make exhaust
// runs all of them without it.
var raced = []string{
	"TestStoppedAgentIsSilent", "TestRefusedClusterLeavesNothingBehind", "TestBoots", "TestBringUp", "TestTriggerRightAfterAPoll",
	"TestEveryCrash", "TestEveryStop", "TestSeeds", "TestUpgradeSeeds", "TestCrashDuringTearDown",
	"TestEdits", "TestEditsByHandAreUndone", "TestPeopleInATurn", "TestPeopleInARemoval", "TestPutBack", "TestGuardOfConfigs",
	"TestUpgradeOfTalos", "TestSnapshotThatSomebodyAsksFor", "TestForecastOfAddons", "TestSpreadOverHosts",
	"TestCacheDeletedInUse", "TestConsoleOfNoVM", "TestDiff", "TestExaminationsAreShared", "TestUsage",
	"TestClusterThatIsSeenMeanwhile", "TestRemovedClusterIsForgotten", "TestMisnamedFolder", "TestSilentRepositoryAfterARestart",
	"TestClustersThatWaitForOneRepository", "TestSourceReadsOnce", "TestDirectoryThatIsNoTop", "TestPanicOverTheRepository",
	"TestDualStack", "TestPortForwards", "TestDiscoveredAddresses", "TestReservations", "TestCredentialsFollowTheClock",
	"TestRendererJudgesWhatItIsGiven", "TestNothingIsRenderedForARefusal", "TestFirewallThatLocksTheAgentOut",
}
