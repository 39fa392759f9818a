"""General texts on which ``improve`` measures what training cost a pretrained model: written for this, part of no task."""

TEXTS = (
    "The Moon goes round the Earth in a little more than twenty-seven days and always shows it the same side. It "
    "has no air, so its sky is black even at noon, and the footprints that people left there in 1969 are still "
    "sharp. The tides of the sea are mostly its work.",
    "Water boils at one hundred degrees Celsius at sea level. On a high mountain the air presses less, so it boils "
    "earlier, and potatoes take longer to become soft. A pot with a tight lid does the opposite: the steam raises "
    "the pressure, and the water becomes hotter before it boils.",
    "When the old clockmaker died, nobody in the village knew what to do with the tower. For a week the hands "
    "stood at ten past four. Then his granddaughter climbed the stairs with a lamp and a can of oil, and in the "
    "morning the bells woke everyone as if nothing had happened.",
    "Dear Mr. Hansen,\n\nThank you for your letter of 3 May. I am sorry to hear that the kettle arrived without "
    "its lid. We will send you a new one this week, free of charge. If you have any further questions, please let "
    "me know.\n\nKind regards,\nMaria Lopez\nCustomer Service",
    "def median(values):\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n    if len(ordered) % 2 == "
    "1:\n        return ordered[middle]\n    return (ordered[middle - 1] + ordered[middle]) / "
    "2\n\nprint(median([3, 1, 2]))\n",
    "Things to pack for a weekend in the mountains:\n\n1. Warm socks and a raincoat\n2. A map and a compass\n3. "
    "Bread, cheese, apples and enough water\n4. A small first aid kit\n5. A torch with spare batteries\n6. A book "
    "for the evening\n",
    "Anna has twelve apples and gives a third of them to her brother. He eats one on the way home and puts the "
    "rest in a bowl. A third of twelve is four, and four minus one is three, so there are three apples in the "
    "bowl. Anna still has eight.",
    "Le petit marché ouvre à sept heures. On y trouve du pain, des légumes, du poisson et des fleurs. Ma "
    "grand-mère y va chaque samedi avec son panier, et elle parle avec tout le monde avant de rentrer à la maison.",
    "A: Hi! Are you coming to the concert tonight?\nB: I would like to, but I have to work until eight.\nA: It "
    "begins at half past eight, so you could still make it.\nB: All right, keep a seat for me. Where shall we "
    "meet?\nA: In front of the main entrance.\n",
    "To make a simple vegetable soup, heat some oil in a large pot and fry a chopped onion until it is golden. Add "
    "carrots, celery and potatoes, cover them with water, and let everything simmer for twenty minutes. Season "
    "with salt and pepper and serve with fresh bread.",
    "The French Revolution began in 1789, when the people of Paris stormed the Bastille. Four years later the king "
    "was executed. The republic that followed did not last: in 1804 Napoleon Bonaparte crowned himself emperor.",
    "<html>\n  <head>\n    <title>My garden</title>\n  </head>\n  <body>\n    <h1>Roses</h1>\n    <p>They need sun "
    "and water.</p>\n    <ul>\n      <li>red</li>\n      <li>white</li>\n    </ul>\n  </body>\n</html>\n",
    "The city council decided on Tuesday to close the bridge over the river for repairs. Work will begin next "
    'month and is expected to take about a year. "Safety comes first," the mayor said, "but we know that this will '
    'be hard for many people." Buses will use another route.',
    "Q: What is photosynthesis?\nA: Photosynthesis is the process by which green plants make sugar from carbon "
    "dioxide and water, using the energy of sunlight. Oxygen is set free. It takes place in the chloroplasts, "
    "which contain the green pigment chlorophyll.\n",
    "Der Zug nach Hamburg fährt heute von Gleis sieben ab und hat etwa zehn Minuten Verspätung. Wir bitten um "
    "Entschuldigung. Reisende nach Bremen steigen bitte in Hannover um.",
    "If all birds have feathers, and a penguin is a bird, then a penguin has feathers. From this it does not "
    "follow that everything with feathers is a penguin. An argument can be valid although one of its premises is "
    "false, and its conclusion can be true although the argument is bad.",
)
